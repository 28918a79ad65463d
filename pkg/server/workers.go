package server

import "sync/atomic"

// job is calls that a worker decides and answers.
type job interface{ decide() }

// workers are goroutines for calls of the lane that may wait, streamWorkers of them once started. A
// new goroutine must grow its stack, which costs a third of a call.
type workers struct {
	calls chan job
	done  chan struct{}
	idle  atomic.Int64
	most  int64 // of idle
}

func newWorkers() *workers { return &workers{calls: make(chan job), done: make(chan struct{})} }

// start starts the workers. Without start each call has a goroutine of its own.
func (w *workers) start() {
	w.most = streamWorkers
	for range w.most {
		go w.wait()
	}
}

// do decides a call in a worker that is idle, or in a new one, without waiting.
func (w *workers) do(j job) {
	select {
	case w.calls <- j:
	default:
		go w.work(j)
	}
}

// work decides a call, and others until there are enough idle workers.
func (w *workers) work(j job) {
	j.decide()
	w.wait()
}

// wait decides calls while there are not too many idle workers.
func (w *workers) wait() {
	for w.idle.Add(1) <= w.most {
		select {
		case j := <-w.calls:
			w.idle.Add(-1)
			j.decide()
		case <-w.done:
			return
		}
	}
	w.idle.Add(-1)
}

// close ends the idle workers, and the others after their calls. A second close is not allowed.
func (w *workers) close() { close(w.done) }
