package grants

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"strconv"
	"time"

	"github.com/weirproxy/weir/pkg/limiter"
)

// Epochs in an answer of the script sync that say something else.
const (
	emptyEpoch  = ""  // Redis has nothing
	brokenEpoch = "!" // some of the keys are lost
)

// look is one look at Redis: a page after the other, until there are no more changes. Usually the
// pages have the changes after the known version. The first page of another epoch, or of an older
// version, begins a resync, which reads all grants. mu of the Keeper must be held in all methods.
type look struct {
	*Keeper
	changes map[string]*limiter.Grant // of the pages, by slot, not in force yet. nil: the slot has no grant now
	seen    map[string]bool           // slots with a grant, during a resync; else nil
	grants  int                       // in changes
	bytes   int                       // of these, see sizeOf
	stopped bool                      // some grants in Redis are above the bounds
	began   uint64                    // version at the begin of a resync
	lost    bool                      // Redis has lost grants that are not put back yet
	older   map[string]string         // while lost: the IDs of grants by slot, each older than the grant that is known here
	repairs int                       // attempts to put keys or grants back
}

// page is an answer of the script sync.
type page struct {
	epoch         string
	version, from uint64
	grants        int
	last          uint64 // version of the last change
	full          bool   // there may be more changes
	changes       map[string]*limiter.Grant
}

// headSize is the number of texts before the changes of a page.
const headSize = 5

// read asks for changes after the known version. A page of 200 grants takes 0.6 ms in Redis and 2
// ms of CPU here.
func (k *Keeper) read(ctx context.Context, all bool) (*page, error) {
	s, flag := k.shared, "0"
	if all {
		flag = "1"
	}
	asked := time.Now()
	answer, err := s.run(ctx, "sync", s.epoch, strconv.FormatUint(s.version, 10), strconv.Itoa(pageSize), flag)
	if err != nil {
		return nil, err
	}
	if len(answer) < headSize || (len(answer)-headSize)%3 != 0 {
		return nil, errAnswer
	}
	number := func(text string) (n uint64) {
		n, e := strconv.ParseUint(text, 10, 64)
		err = errors.Join(err, e)
		return n
	}
	p := &page{epoch: answer[0], full: len(answer) == headSize+3*pageSize, changes: make(map[string]*limiter.Grant)}
	p.version, p.from, p.grants = number(answer[1]), number(answer[2]), int(number(answer[3]))
	s.lead = time.Duration(number(answer[4]))*time.Millisecond - asked.Sub(s.begun)
	p.last = p.from
	for i := headSize; i < len(answer); i += 3 { // slot, version and value of each change
		at, text := answer[i], answer[i+2]
		p.last = number(answer[i+1])
		p.changes[at] = nil
		if text == "" {
			continue
		}
		g, wrong := value(text)
		if wrong != nil {
			if missed, ok := s.unread.Due(saysEvery); ok {
				k.options.Logger.LogAttrs(ctx, slog.LevelError, "a grant in Redis cannot be read, and has no effect here",
					slog.String("slot", at), slog.String("error", wrong.Error()), slog.Uint64("not_logged", missed))
			}
			continue
		}
		p.changes[at] = g
	}
	return p, err
}

// maxRepairs is a number of attempts in one look. Somebody may delete keys again and again.
const maxRepairs = 3

// followLocked reads changes until there are no more. After an error the changes that were read are
// in force, and the next look begins where this one began. mu must be held.
func (k *Keeper) followLocked(ctx context.Context) error {
	s, l := k.shared, &look{Keeper: k, changes: make(map[string]*limiter.Grant)}
	epoch, version := s.epoch, s.version
	for {
		done, err := l.next(ctx)
		if err != nil {
			l.take(ctx)
			if s.loaded { // else the grants of the first pages need no second look
				s.epoch, s.version = epoch, version
			}
		}
		if done || err != nil {
			return err
		}
	}
}

// next reads a page, and reports whether the look has come to its end.
func (l *look) next(ctx context.Context) (done bool, err error) {
	s := l.shared
	p, err := l.read(ctx, l.seen != nil)
	if err != nil {
		return false, err
	}
	restarts := p.epoch != s.epoch || p.from < s.version
	if restarts { // the pages before are of another time
		l.take(ctx)
	}
	switch {
	case p.epoch == brokenEpoch:
		return false, l.repair(ctx)
	case p.epoch == emptyEpoch:
		return l.refill(ctx)
	case restarts:
		l.resync(p)
	}
	l.add(p.changes)
	switch s.version = p.last; {
	case l.stopped && l.seen != nil:
		s.version = max(s.version, l.began) // later changes of grants that were read are yet to come
	case p.full:
		return false, nil
	default:
		s.version = max(s.version, p.version)
	}
	return l.finish(ctx, p)
}

// add adds the changes of a page. Grants above the bounds have no effect here. A resync then stops,
// and changes follow from the version of its begin on. Another look goes on, as known grants may
// end with the changes to come.
func (l *look) add(changes map[string]*limiter.Grant) {
	for at, g := range changes { // of two changes of a slot the later one counts
		was, again := l.changes[at]
		if was != nil {
			l.grants, l.bytes = l.grants-1, l.bytes-sizeOf(was)
		}
		if g != nil && !l.fits(l.grants+1, l.bytes+sizeOf(g)) {
			l.stopped = true
			g = nil
		}
		switch {
		case g != nil:
			l.changes[at] = g
			l.grants, l.bytes = l.grants+1, l.bytes+sizeOf(g)
		case again || l.slots[at] != nil:
			l.changes[at] = nil
		}
	}
}

// take puts the changes of the pages in force.
func (l *look) take(ctx context.Context) {
	l.keepNewer(l.changes)
	l.takeLocked(ctx, l.changes)
	l.changes, l.grants, l.bytes = make(map[string]*limiter.Grant), 0, 0
}

// keepNewer drops changes to an older grant than the known one, if Redis has lost grants. The
// clocks of the processes that gave them decide.
func (l *look) keepNewer(changes map[string]*limiter.Grant) {
	if !l.lost {
		return
	}
	now := l.wall()
	for at, g := range changes {
		known := l.slots[at]
		if g == nil || known == nil || known.ID == g.ID || !known.Given.After(g.Given) || !known.Until.After(now) {
			continue
		}
		if l.older == nil {
			l.older = make(map[string]string)
		}
		l.older[at] = g.ID
		delete(changes, at)
	}
}

// repair makes the keys in Redis fit together again.
func (l *look) repair(ctx context.Context) error {
	if _, _, err := l.change(ctx, "repair"); err != nil {
		return err
	}
	if l.repairs++; l.repairs > maxRepairs {
		return errors.New("the keys in Redis do not fit together")
	}
	return nil
}

// refill puts all known grants into a Redis that has nothing. The look is over if there is no grant
// that Redis could take.
func (l *look) refill(ctx context.Context) (done bool, err error) {
	s := l.shared
	if len(l.slots) == 0 {
		s.epoch, s.version, s.loaded = emptyEpoch, 0, true
		return true, nil
	}
	l.warnLost(ctx)
	if err := l.restoreLocked(ctx, nil, nil); err != nil {
		return false, err
	}
	if l.repairs++; l.repairs > maxRepairs || !l.aliveLocked() {
		l.takeLocked(ctx, l.missingLocked(nil))
		return true, nil
	}
	s.epoch, s.version, l.lost = emptyEpoch, 0, true // others may have put older grants back
	return false, nil
}

// resync begins to read all grants with a first page.
func (l *look) resync(first *page) {
	s := l.shared
	if s.loaded && s.epoch != emptyEpoch && l.seen == nil && (first.epoch != s.epoch || first.version < s.version) {
		l.lost = true
	}
	l.seen, l.began = make(map[string]bool), first.version
	s.epoch = first.epoch
}

// finish puts the changes in force when there are no more pages. The look goes on if grants had to
// be put back: others may have changed these slots meanwhile.
func (l *look) finish(ctx context.Context, last *page) (done bool, err error) {
	if l.seen != nil {
		l.see(l.changes)
	}
	l.take(ctx)
	if l.stopped {
		l.warnAbove(ctx)
		l.lost, l.older = false, nil // there is no room to put grants back
	}
	if l.lost {
		older := l.older
		l.lost, l.older = false, nil
		l.warnLost(ctx)
		return false, l.restoreLocked(ctx, l.seen, older)
	}
	l.shared.loaded = true
	l.reachLocked(ctx)
	l.countLocked(last.grants)
	return true, nil
}

// see notes the slots of a resync. Grants that Redis does not have any more end with the changes,
// so that they make room, unless they are about to be put back.
func (l *look) see(changes map[string]*limiter.Grant) {
	for at, g := range changes {
		l.seen[at] = g != nil
	}
	if !l.lost {
		maps.Copy(changes, l.missingLocked(l.seen))
	}
}
