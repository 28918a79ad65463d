package redisstore

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// zoneReleases compares the time zones of this process with the other processes that share the main
// server. Two releases of the time zones can begin a window at two instants. A key then gets its
// limit once more around the boundary.
type zoneReleases struct {
	server  *server
	script  *rueidis.Lua
	release atomic.Pointer[func() string] // see Store.CompareZones; nil: nothing is compared
	others  atomic.Int64                  // releases of other processes

	// Of the goroutine of fleet.run.
	asked   int64    // instant of the last answer, in microseconds of Redis's time; 0: no answer
	known   []string // releases of other processes, as logged last
	refused bool     // the last error was logged
}

const (
	zonesPause = 10 * time.Second // between two questions
	zonesKnown = 6                // pauses for which a release is known
)

// CompareZones makes this process compare its time zones with the other processes that share Redis,
// and log releases that differ. release returns the release of this process, or "" while no limit
// needs a time zone. release is called at any time, by one goroutine, and must not return spaces or
// more than 32 bytes. See Options.CountFleet, without which nothing is compared.
func (s *Store) CompareZones(release func() string) { s.fleet.zones.release.Store(&release) }

// compare asks for the releases of the others, if that is due at an instant of Redis's time in
// microseconds. rest is the least pause.
func (z *zoneReleases) compare(ctx context.Context, client rueidis.Client, now int64, rest time.Duration) {
	release := ""
	if told := z.release.Load(); told != nil {
		release = (*told)()
	}
	if release == "" {
		z.asked, z.known = 0, nil
		z.others.Store(0)
		return
	}
	pause := max(zonesPause, rest).Microseconds()
	if since := now - z.asked; z.asked > 0 && since >= 0 && since < pause {
		return
	}
	args := []string{release, strconv.FormatInt(now, 10), strconv.FormatInt(zonesKnown*pause, 10)}
	others, err := z.script.Exec(ctx, client, []string{z.server.prefix + "zones"}, args).AsStrSlice()
	if err = z.server.connection.Report(err); err != nil {
		z.failed(err)
		return
	}
	z.asked, z.refused = now, false
	z.learn(release, others)
}

// learn logs a change of the releases of other processes.
func (z *zoneReleases) learn(release string, others []string) {
	slices.Sort(others)
	if slices.Equal(others, z.known) {
		return
	}
	z.known = others
	z.others.Store(int64(len(others)))
	attrs := []slog.Attr{slog.Any("redis", z.server.target), slog.String("zones", release), slog.Any("others", others)}
	if len(others) == 0 {
		z.server.logger.LogAttrs(context.Background(), slog.LevelInfo, "all processes that share redis have the same time zones", attrs...)
		return
	}
	z.server.logger.LogAttrs(context.Background(), slog.LevelWarn,
		"processes that share redis have other time zones: a key can get its limit once more around the end of a window", attrs...)
}

// failed logs a refusal of Redis, and not again before a call that succeeds.
func (z *zoneReleases) failed(err error) {
	if _, is := rueidis.IsRedisErr(err); !is || z.refused || unapplied(err) {
		return
	}
	z.refused = true
	z.server.logger.LogAttrs(context.Background(), slog.LevelWarn, "cannot compare the time zones of the processes that share redis",
		slog.Any("redis", z.server.target), slog.String("error", err.Error()))
}
