package app

import (
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/weirproxy/weir/internal/wire"
)

// maxHeaderBytes bounds the headers of a request, which take ten times as much in memory.
const maxHeaderBytes = 12 << 10

func (p *process) newHTTP(pages http.Handler) *wire.HTTP {
	s := wire.NewHTTP(reported(pages), maxHeaderBytes, p.Logger)
	s.WriteTimeout = 2 * time.Minute // a profile takes 30 seconds unless asked for longer
	return s
}

// reported reports requests to the bound of connections. A request begins when its body has
// arrived: a client that sends slowly must not keep a place.
func reported(pages http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, bounded := wire.ConnOf(r).(*wire.Conn)
		if !bounded {
			pages.ServeHTTP(w, r)
			return
		}
		if r.ContentLength == 0 {
			c.Begin()
		} else {
			r.Body = &arriving{r.Body, c}
		}
		defer c.Done()
		defer c.Answered()
		pages.ServeHTTP(w, r)
	})
}

type arriving struct {
	io.ReadCloser
	on *wire.Conn
}

// Read implements [io.Reader].
func (a *arriving) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		a.on.Begin()
	}
	return n, err
}
