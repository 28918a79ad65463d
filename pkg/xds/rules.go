package xds

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/weirproxy/weir/pkg/descriptors"
)

// rules is what a client knows of the control plane's rules, from one stream to the next.
type rules struct {
	wanted   map[string]descriptors.Source // what the control plane wants, by resource name; nil before the first response
	versions map[string]string             // delta: versions of the resources that came into force, by name
	version  string                        // state of the world: of the last response that was accepted
	refusal  error                         // what is wrong with wanted; nil: it is in force
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
func (r *rules) after(in response) map[string]descriptors.Source {
	next := make(map[string]descriptors.Source, len(in.resources))
	if !in.whole {
		maps.Copy(next, r.wanted)
	}
	for _, name := range in.removed {
		delete(next, name)
	}
	for _, x := range in.resources {
		next[x.name] = x.Source
	}
	return next
}

// repeats reports whether a response says nothing new.
func (r *rules) repeats(in response) bool {
	return r.wanted != nil && maps.EqualFunc(r.wanted, r.after(in), func(a, b descriptors.Source) bool {
		return a.Name == b.Name && bytes.Equal(a.Data, b.Data)
	})
}

// put has what a response brings put in force, and returns what is wrong with it. An error of ctx says nothing of it.
func (c *Client) put(ctx context.Context, in response) error {
	r := &c.rules
	if r.refusal != nil || !r.repeats(in) {
		r.wanted = r.after(in)
		all := slices.SortedFunc(maps.Values(r.wanted), func(a, b descriptors.Source) int { return bytes.Compare([]byte(a.Name), []byte(b.Name)) })
		r.refusal = c.options.Push(ctx, all)
		if ctx.Err() != nil {
			return ctx.Err()
		}
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
	for name, s := range r.wanted {
		if !ok || files[s.Name] {
			bad[name] = true
		}
	}
	return bad
}

// note keeps the versions of what came into force, for the next stream: of what did not the control plane is to send it again.
func (r *rules) note(in response, bad map[string]bool) {
	if r.refusal == nil {
		r.version = in.version
	}
	if in.whole {
		return
	}
	if r.versions == nil {
		r.versions = make(map[string]string)
	}
	for _, name := range in.removed {
		delete(r.versions, name)
	}
	for _, x := range in.resources {
		if !bad[x.name] {
			r.versions[x.name] = x.version
		}
	}
}
