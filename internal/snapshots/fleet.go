package snapshots

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/weirproxy/weir/internal/regular"
)

// fleet is the number of processes that share the store for which the directory has states. Of the
// numbers of the last fleetMemory the largest counts: processes that stop one after the other see
// fewer and fewer.
type fleet struct {
	processes int       // 0: not known
	seen      time.Time // when the number was last as large, by the wall clock
	member    string    // of the process of this directory, see Options.Member
}

const (
	fleetMemory = time.Hour
	// fleetRenewal is the time after which an unchanged number is written again.
	fleetRenewal = fleetMemory / 6
	maxFleet     = 1_000_000
)

// after returns the fleet after a look at the number of processes, 0 if that is not known.
func (f fleet) after(processes int, now time.Time) fleet {
	if processes > 0 && (processes >= f.processes || now.Sub(f.seen).Abs() > fleetMemory) {
		f.processes, f.seen = processes, now
	}
	return f
}

// text returns the content of the file: the number, the time and the name.
func (f fleet) text() string {
	return fmt.Sprintf("%d %s %s\n", f.processes, f.seen.UTC().Format(time.RFC3339), f.member)
}

func parseFleet(text string) (fleet, error) {
	number, rest, _ := strings.Cut(strings.TrimSuffix(text, "\n"), " ")
	seen, member, _ := strings.Cut(rest, " ") // files of before have no name
	n, err := strconv.Atoi(number)
	at, errAt := time.Parse(time.RFC3339, seen)
	if err != nil || errAt != nil || n < 1 || n > maxFleet {
		return fleet{}, fmt.Errorf("%.40q: must be a number from 1 to %d, and a time", text, maxFleet)
	}
	return fleet{n, at, member}, nil
}

// readFleet reads the file; a missing one is the zero fleet.
func readFleet(path string) (fleet, error) {
	f, _, err := regular.OpenNoLink(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fleet{}, nil
	}
	if err != nil {
		return fleet{}, err
	}
	defer func() { _ = f.Close() }() // was only read
	text, err := io.ReadAll(io.LimitReader(f, 128))
	if err != nil {
		return fleet{}, err
	}
	return parseFleet(string(text))
}

// Fleet returns the number of processes that the directory has; 0: not known.
func (k *Keeper) Fleet() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.fleet.processes
}

// Former returns Options.Member of the last process that used the directory; "": not known.
func (k *Keeper) Former() string { return k.former }

// loadFleetLocked reads the number of processes. mu must be held.
func (k *Keeper) loadFleetLocked(ctx context.Context) {
	var err error
	if k.fleet, err = readFleet(k.fleetPath()); err != nil {
		k.options.Logger.LogAttrs(ctx, slog.LevelWarn, "the number of processes that share Redis cannot be read",
			slog.String("file", k.fleetPath()), slog.String("error", err.Error()))
	}
	k.former = k.fleet.member
}

// saveFleetLocked writes the number of processes, if there is something new. A failure goes to the
// log, unless the last one was the same. The next Save tries again. mu must be held.
func (k *Keeper) saveFleetLocked(ctx context.Context, now time.Time) {
	next := k.fleet.after(k.options.Fleet(), now)
	if next.member = k.options.Member(); next.processes == 0 {
		return
	}
	if next.processes == k.fleet.processes && next.member == k.fleet.member && next.seen.Sub(k.fleet.seen).Abs() < fleetRenewal {
		return
	}
	err := k.replaceLocked(k.fleetPath(), func(to io.Writer) error {
		_, err := io.WriteString(to, next.text())
		return err
	})
	if err == nil {
		k.fleet, k.fleetFailed = next, ""
	} else if text := err.Error(); text != k.fleetFailed {
		k.fleetFailed = text
		k.options.Logger.LogAttrs(ctx, slog.LevelWarn, "the number of processes that share Redis cannot be saved",
			slog.String("file", k.fleetPath()), slog.String("error", text))
	}
}
