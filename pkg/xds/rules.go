package xds

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/weirproxy/weir/pkg/descriptors"
)

// rules is what a client knows of the control plane's rules, from one stream to the next.
type rules struct {
	wanted  map[string]resource // what the control plane wants, by resource name; nil before the first response
	good    map[string]resource // of each name what came into force last, as long as it is wanted
	version string              // state of the world: of the last response that was accepted
	refusal error               // what is wrong with wanted; nil: it is in force, or has yet to be judged
	changed bool                // wanted has yet to be judged
}

// response is what a control plane sent.
type response struct {
	version   string
	nonce     string
	whole     bool // what is not in it is not to be there any more
	resources []resource
	removed   []string
}

// after returns what the control plane wants after a response.
func (r *rules) after(in response) map[string]resource {
	next := make(map[string]resource, len(in.resources))
	if !in.whole {
		maps.Copy(next, r.wanted)
	}
	for _, name := range in.removed {
		delete(next, name)
	}
	for _, x := range in.resources {
		next[x.name] = x
	}
	return next
}

// repeats reports whether a response says nothing new.
func (r *rules) repeats(in response) bool {
	return r.wanted != nil && !r.changed && maps.EqualFunc(r.wanted, r.after(in), func(a, b resource) bool {
		return a.Name == b.Name && bytes.Equal(a.Data, b.Data)
	})
}

// versions returns those of what came into force: of what did not the control plane is to send it again.
func (r *rules) versions() map[string]string {
	all := make(map[string]string, len(r.good))
	for name, x := range r.good {
		all[name] = x.version
	}
	return all
}

// resume makes ready for a stream on which the control plane is told only of what came into force: it will say what is wanted instead
// of that, and does not know of anything else that could be gone.
func (r *rules) resume() {
	if r.refusal != nil {
		r.wanted, r.refusal, r.changed = maps.Clone(r.good), nil, true
	}
}

// put has what a response brings put in force, and returns what is wrong with it. An error of ctx says nothing of it.
func (c *Client) put(ctx context.Context, in response) error {
	r := &c.rules
	again := r.repeats(in)
	r.wanted = r.after(in)
	if r.refusal != nil || !again {
		all := make([]descriptors.Source, 0, len(r.wanted))
		for _, x := range r.wanted {
			all = append(all, x.Source)
		}
		slices.SortFunc(all, func(a, b descriptors.Source) int { return cmp.Compare(a.Name, b.Name) })
		r.changed = true
		refusal := c.options.Push(ctx, all)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r.refusal, r.changed = refusal, false
	}
	bad := r.bad()
	r.note(in, bad)
	c.judged(ctx, in, len(r.wanted), len(bad), r.refusal)
	return r.refusal
}

// bad returns the names of the resources that are not in force.
func (r *rules) bad() map[string]bool {
	if r.refusal == nil {
		return nil
	}
	bad := make(map[string]bool)
	mistakes, ok := errors.AsType[descriptors.Errors](r.refusal)
	files := make(map[string]bool, len(mistakes))
	for _, e := range mistakes {
		files[e.File] = true
	}
	for name, x := range r.wanted {
		if !ok || files[x.Name] {
			bad[name] = true
		}
	}
	return bad
}

// note keeps what came into force, for the next stream.
func (r *rules) note(in response, bad map[string]bool) {
	if r.refusal == nil {
		r.version = in.version
	}
	good := make(map[string]resource, len(r.wanted))
	for name, x := range r.wanted {
		if !bad[name] {
			good[name] = x
		} else if older, known := r.good[name]; known {
			good[name] = older
		}
	}
	r.good = good
}
