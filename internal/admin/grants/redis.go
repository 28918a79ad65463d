package grants

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/internal/loglimit"
	"github.com/weirproxy/weir/pkg/limiter"
)

// Redis runs scripts in Redis. Safe for concurrent use.
type Redis interface {
	// Run runs a script and returns the texts of its answer. All keys lie in one slot of a cluster.
	// Run puts a prefix before them.
	Run(ctx context.Context, script string, keys, args []string) ([]string, error)
}

//go:embed script/sync.lua script/change.lua
var scripts embed.FS

// shared is the grants in Redis. Each change there gets the next version. A process asks for the
// changes after the version that it knows, about twice a second, with one short script. No message
// can be lost, and a failover changes nothing.
//
// An epoch is a text that Redis gets with the first grant. Another epoch, or an older version, says
// that Redis lost data, as after a restart without persistence. The processes then restore the
// grants that they know. A grant that was revoked since, or replaced by a later one, is not
// restored.
type shared struct {
	redis   Redis
	epoch   string      // "": unknown
	version uint64      // up to which all changes are known
	failed  atomic.Bool // the last look failed. The mu of the Keeper guards all other fields
	warned  bool        // that Redis has lost grants, since the last look that succeeded
	loaded  bool        // all grants were read once
	counted time.Time
	begun   time.Time     // of the process, for lead
	lead    time.Duration // the clock of Redis at the monotonic instant begun, as the last answer says; 0: unknown
	more    int           // grants in Redis beyond the known ones, at the last count
	own     string        // the grant that an operator gives or revokes here now: the line about the operator is the only one

	unknown  atomic.Int64 // grants in Redis beyond the known ones, at the last look
	without  atomic.Bool  // no grant is known as no look has come to its end
	saidAway bool         // the log has a line about Redis that is away, and not yet the line about its return

	away, lost, unread, above loglimit.Limiter // of lines that Redis can cause as often as it answers
}

// saysEvery is the time between two lines of the log with the same text about Redis.
const saysEvery = time.Minute

const (
	syncEvery   = 400 * time.Millisecond
	syncTimeout = time.Second
	pageSize    = 200         // grants in one answer: at most 3 MB, as internal/redis takes 4 MB
	countEvery  = time.Minute // between two looks whether Redis has as many grants as known here
)

func (s *shared) run(ctx context.Context, name string, args ...string) ([]string, error) {
	text, err := scripts.ReadFile("script/" + name + ".lua")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	return s.redis.Run(ctx, string(text), []string{"{grants}", "{grants}:changes", "{grants}:ends", "{grants}:meta"}, args) // one slot of a cluster
}

// change runs a change. After an error the change has been made, or never will be: Redis makes no
// change after the caller has stopped to wait. When the clock of Redis has stepped, change learns
// that and tries once more.
func (k *Keeper) change(ctx context.Context, what string, args ...string) (outcome, was string, err error) {
	for range 2 {
		if outcome, was, err = k.changeOnce(ctx, what, args); err != nil || outcome != "late" {
			return outcome, was, err
		}
		k.failures.Add(1)
		if _, err := k.read(ctx, false); err != nil {
			return "", "", fmt.Errorf("redis has not made the change: %w", err)
		}
	}
	return "", "", errors.New("redis was too slow, and has not made the change")
}

func (k *Keeper) changeOnce(ctx context.Context, what string, args []string) (outcome, was string, err error) {
	deadline := "0" // none
	if s := k.shared; s.lead != 0 {
		deadline = strconv.FormatInt((s.lead + time.Since(s.begun) + syncTimeout).Milliseconds(), 10)
	}
	past, now := strconv.FormatInt(k.ends.past.UnixMilli(), 10), strconv.FormatInt(k.wall().UnixMilli(), 10)
	answer, err := k.shared.run(ctx, "change", append([]string{what, newID(), strconv.Itoa(k.options.Max), past, now, deadline}, args...)...)
	if err == nil && len(answer) != 2 {
		err = errAnswer
	}
	if err != nil {
		k.failures.Add(1)
		return "", "", fmt.Errorf("redis has not confirmed the change, so it may be in force all the same (it comes no later): %w", err)
	}
	return answer[0], answer[1], nil
}

var errAnswer = errors.New("an answer in a form that the script does not have")

func item(at string, g *limiter.Grant) []string {
	return []string{at, strconv.FormatInt(g.Until.UnixMilli()+1, 10), string(encode(g))} // the end, rounded up
}

// begins returns the first bytes of the JSON of a grant.
func begins(id string) string { return fmt.Sprintf(`{"id":%q`, id) }

func value(text string) (*limiter.Grant, error) {
	_, line, _ := strings.Cut(text, " ")
	return decode([]byte(line))
}

// giveSharedLocked gives a grant in Redis, and reads it from there. mu must be held.
func (k *Keeper) giveSharedLocked(ctx context.Context, at string, g *limiter.Grant) (replaced *limiter.Grant, err error) {
	if _, bytes := k.withLocked(at, g); !k.fits(0, bytes) { // Redis counts the grants
		return nil, k.full()
	}
	outcome, was, err := k.change(ctx, "give", item(at, g)...)
	if err != nil {
		return nil, err
	}
	if outcome == "full" {
		return nil, k.full()
	}
	if was != "" {
		replaced, _ = value(was) // nil if nobody can read the value
	}
	k.syncOwnLocked(ctx, g.ID)
	return replaced, nil
}

// revokeSharedLocked ends a grant in Redis. mu must be held.
func (k *Keeper) revokeSharedLocked(ctx context.Context, at string, g *limiter.Grant) error {
	outcome, _, err := k.change(ctx, "end", at, begins(g.ID))
	if err != nil {
		return err
	}
	if outcome == "unknown" {
		k.syncLocked(ctx)
		return fmt.Errorf("%w: %.40q", limiter.ErrUnknownGrant, g.ID)
	}
	k.syncOwnLocked(ctx, g.ID)
	return nil
}

// syncOwnLocked reads the changes of grants from Redis after a change by an operator here. mu must
// be held.
func (k *Keeper) syncOwnLocked(ctx context.Context, id string) {
	k.shared.own = id
	k.syncLocked(ctx)
	k.shared.own = ""
}
