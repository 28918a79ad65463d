package xds

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/weirproxy/weir/pkg/descriptors"
)

// rules is the state of the control plane's rules; it outlives streams.
type rules struct {
	requested map[string]resource // that the control plane asks for, by name; nil before the first response
	inForce   map[string]resource // of each requested name the last version that came into force
	refusal   error               // why a part of requested is not in force; nil also when unjudged
	unjudged  bool                // Push has not judged requested yet
}

func (r *rules) after(in response) map[string]resource {
	next := make(map[string]resource, len(in.resources))
	if !in.whole {
		maps.Copy(next, r.requested)
	}
	for _, name := range in.removed {
		delete(next, name)
	}
	for _, x := range in.resources {
		next[x.name] = x
	}
	return next
}

func (r *rules) repeats(in response) bool {
	return r.requested != nil && !r.unjudged && maps.EqualFunc(r.requested, r.after(in), func(a, b resource) bool {
		return a.Source.Equal(b.Source)
	})
}

// versions returns the versions in force. The control plane is to send every other resource again.
func (r *rules) versions() map[string]string {
	all := make(map[string]string, len(r.inForce))
	for name, x := range r.inForce {
		all[name] = x.version
	}
	return all
}

// resume prepares for a delta stream, which begins with the resources in force.
func (r *rules) resume() {
	if r.refusal != nil {
		r.requested, r.refusal, r.unjudged = maps.Clone(r.inForce), nil, true
	}
}

// put pushes the resources, and returns why some are not in force; or the end of ctx.
func (c *Client) put(ctx context.Context, in response) error {
	r := &c.rules
	again := r.repeats(in)
	r.requested = r.after(in)
	if r.refusal != nil || !again {
		all := make([]descriptors.Source, 0, len(r.requested))
		for _, x := range r.requested {
			all = append(all, x.Source)
		}
		slices.SortFunc(all, func(a, b descriptors.Source) int { return cmp.Compare(a.Name, b.Name) })
		r.unjudged = true
		refusal := c.options.Push(ctx, all)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r.refusal, r.unjudged = refusal, false
	}
	bad := r.note()
	c.judged(ctx, in, len(r.requested), bad, r.refusal)
	return r.refusal
}

// note records which requested resources are in force, and returns the number of the others.
func (r *rules) note() (bad int) {
	refused := make(map[string]bool) // by name of the document
	mistakes, known := errors.AsType[descriptors.Errors](r.refusal)
	for _, e := range mistakes {
		refused[e.File] = true
	}
	next := make(map[string]resource, len(r.requested))
	for name, x := range r.requested {
		if r.refusal == nil || known && !refused[x.Name] {
			next[name] = x
			continue
		}
		bad++
		if older, ok := r.inForce[name]; ok {
			next[name] = older
		}
	}
	r.inForce = next
	return bad
}
