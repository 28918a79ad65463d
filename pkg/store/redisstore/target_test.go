package redisstore

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

func TestTargetPrintsWithoutPasswords(t *testing.T) {
	for want, target := range map[string]Target{
		"redis://me:***@a:6379": {URLs: []string{"redis://me:secret@a"}},
		"redis-sentinel://:***@a:26379/main": {
			URLs: []string{"redis-sentinel://:secret@a/main?sentinel_password=secret"},
		},
		"nowhere": {URLs: []string{"http://:secret@a"}},
	} {
		for _, got := range []string{target.String(), fmt.Sprintf("%+v", target), fmt.Sprintf("%#v", target), slog.AnyValue(target).Resolve().String()} {
			if got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		}
	}
}

func TestNewNamesTheMistakesOfBothTargets(t *testing.T) {
	_, err := New(Options{Logger: slog.New(slog.DiscardHandler), Target: Target{URLs: []string{"http://:secret@a"}}})
	if err == nil || !strings.Contains(err.Error(), `target: URL "http://***@a": not a URL of Redis`) {
		t.Errorf("got %v", err)
	}
	_, err = New(Options{
		Logger: slog.New(slog.DiscardHandler), Target: Target{URLs: []string{"redis://127.0.0.1:1"}}, Seconds: &Target{URLs: []string{"redis://a:secret"}},
	})
	if err == nil || !strings.Contains(err.Error(), `URL "redis://a:***": host 1: the port must be a number`) {
		t.Errorf("of seconds: got %v", err)
	}
}
