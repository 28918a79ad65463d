package app

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
)

func TestANoticeIsALineOfTheLogWithoutCharactersThatATerminalObeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		say := logNotices(slog.New(slog.NewTextHandler(&log, nil)))
		n := limiter.Notice{
			Domain: "edge", Rule: &descriptors.Rule{Path: "user"}, Key: "4:edge|4:user=3:a\x1b[", Mark: 80, Used: 8, Of: 10,
			Until: time.Now().Add(time.Hour),
		}
		say(&n)
		const want = `level=INFO msg="a key has reached a mark of its limit" domain=edge rule=user key="4:edge|4:user=3:a\\x1b[" ` +
			`percent=80 used=8 of=10 limit=`
		if line := log.String(); !strings.Contains(line, want) || !strings.Contains(line, "until=2000-01-01T01:00:00.000Z\n") {
			t.Errorf("got %s; want %s", line, want)
		}
		log.Reset()
		for range 100 {
			say(&n)
		}
		if lines := strings.Count(log.String(), "\n"); lines != noticesAtOnce-1 {
			t.Errorf("got %d lines at once; want %d after the first", lines, noticesAtOnce-1)
		}
		time.Sleep(noticesEvery)
		log.Reset()
		say(&n)
		if line := log.String(); !strings.Contains(line, "not_logged=81\n") {
			t.Errorf("got %s; want the number of lines that are missing", line)
		}
	})
}

func TestABlockIsALineOfTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		say := logNotices(slog.New(slog.NewTextHandler(&log, nil)))
		say(&limiter.Notice{
			Domain: "edge", Rule: &descriptors.Rule{Path: "user"}, Key: "4:edge|4:user=1:a#x", Block: 90 * time.Minute, Until: time.Now().Add(90 * time.Minute),
		})
		const want = `level=INFO msg="a key is blocked, as it offends again and again" domain=edge rule=user key="4:edge|4:user=1:a#x" block=1h30m limit=`
		if line := log.String(); !strings.Contains(line, want) || !strings.Contains(line, "until=2000-01-01T01:30:00.000Z\n") {
			t.Errorf("got %s; want %s", line, want)
		}
	})
}
