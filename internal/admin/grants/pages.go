package grants

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"runtime"
	"strconv"
	"sync"

	"github.com/weirproxy/weir/pkg/limiter"
)

// page is an answer of the script sync.
type page struct {
	epoch         string
	version, from uint64
	grants        int
	last          uint64   // version of the last change
	full          bool     // there may be more changes
	texts         []string // slot, version and value of each change

	changes map[string]*limiter.Grant // by slot, once pages has decoded them. nil: the slot has no grant now
}

// read asks for changes after the known version.
func (k *Keeper) read(ctx context.Context, all bool) (*page, error) {
	s, flag := k.shared, "0"
	if all {
		flag = "1"
	}
	answer, err := s.run(ctx, "sync", s.epoch, strconv.FormatUint(s.version, 10), strconv.Itoa(pageSize), flag)
	if err != nil {
		return nil, err
	}
	if len(answer) < 4 || len(answer)%3 != 1 {
		return nil, errAnswer
	}
	p := &page{epoch: answer[0], texts: answer[4:], full: len(answer) == 4+3*pageSize}
	number := func(text string) (n uint64) {
		n, e := strconv.ParseUint(text, 10, 64)
		err = errors.Join(err, e)
		return n
	}
	p.version, p.from, p.grants = number(answer[1]), number(answer[2]), int(number(answer[3]))
	if p.last = p.from; len(p.texts) > 0 {
		p.last = number(answer[len(answer)-2])
	}
	return p, err
}

// decode reads the changes. Some goroutines may do so at once, each with a page of its own.
func (p *page) decode(ctx context.Context, logger *slog.Logger) {
	p.changes = make(map[string]*limiter.Grant, len(p.texts)/3)
	for i := 0; i < len(p.texts); i += 3 {
		at, text := p.texts[i], p.texts[i+2]
		p.changes[at] = nil
		if text == "" {
			continue
		}
		g, err := value(text)
		if err != nil {
			logger.LogAttrs(ctx, slog.LevelError, "a grant in Redis cannot be read, and has no effect here",
				slog.String("slot", at), slog.String("error", err.Error()))
			continue
		}
		p.changes[at] = g
	}
	p.texts = nil
}

// pages is the answers that follow each other. Other goroutines decode them while the next one is
// on its way. A page of 200 grants takes 0.6 ms in Redis and 2 ms of CPU here.
type pages struct {
	logger *slog.Logger
	all    []*page
	room   chan struct{} // bounds the pages that are not decoded yet
	busy   sync.WaitGroup
}

func newPages(logger *slog.Logger) *pages {
	return &pages{logger: logger, room: make(chan struct{}, 2*runtime.GOMAXPROCS(0))}
}

// add takes a page, and decodes the page if there are more.
func (p *pages) add(ctx context.Context, one *page) {
	p.all = append(p.all, one)
	if !one.full {
		one.decode(ctx, p.logger)
		return
	}
	p.room <- struct{}{}
	p.busy.Go(func() {
		one.decode(ctx, p.logger)
		<-p.room
	})
}

// take returns the changes of all pages, and forgets the pages. Of two changes of a slot the later
// one counts.
func (p *pages) take() map[string]*limiter.Grant {
	p.busy.Wait()
	if len(p.all) == 1 {
		changes := p.all[0].changes
		p.all = nil
		return changes
	}
	changes := make(map[string]*limiter.Grant, len(p.all)*pageSize)
	for _, one := range p.all {
		maps.Copy(changes, one.changes)
	}
	p.all = nil
	return changes
}
