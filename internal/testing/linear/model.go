package linear

import (
	"maps"
	"slices"

	"github.com/anishathalye/porcupine"

	"github.com/weirproxy/weir/internal/testing/model"
	"github.com/weirproxy/weir/pkg/algorithms"
)

// model returns the model of a plan: each answer and each state is exact.
func (p Plan) model() porcupine.Model {
	if p.Parts {
		return partsModel()
	}
	return modelOf(call.explains)
}

// partsModel returns the model of requests whose keys lie in several slots. Decision 14 promises
// less of these. Each part is atomic, but others may see the parts of two requests in another
// order. So each key has an order of its own. While a request is under way, its keys have less room
// than the keys of the model. Another call may be denied that would pass, and sees at most the rest
// of the model. The model admits each admitted call too, and a denial changes nothing. Once all
// calls have ended the rest of each key is exact. A refund waits for the verdict, and its answer
// shows the rest before the wait.
func partsModel() porcupine.Model {
	m := modelOf(call.promised)
	m.Partition = func(history []porcupine.Operation) [][]porcupine.Operation {
		var of [][]porcupine.Operation
		for _, o := range history {
			c, _ := o.Input.(call)
			got, _ := o.Output.(answer)
			if c.method == take && !got.Admitted {
				continue
			}
			for i, k := range c.keys {
				if slices.Index(c.keys, k) < i {
					continue
				}
				for len(of) <= k {
					of = append(of, nil)
				}
				o.Input, o.Output = part(c, got, k)
				of[k] = append(of[k], o)
			}
		}
		return of
	}
	return m
}

// part returns the part of a call about one key, and of its answer.
func part(c call, got answer, k int) (call, answer) {
	own, its := c, got
	own.keys, own.charges, its.Decisions = nil, nil, nil
	sum := int64(0)
	for i := range c.keys {
		if c.keys[i] == k {
			sum += c.charges[i].Hits
			own.keys, own.charges = append(own.keys, 0), append(own.charges, c.charges[i])
			its.Decisions = append(its.Decisions, got.Decisions[i])
		}
	}
	own.waits = sum < 0 && len(own.keys) < len(c.keys)
	return own, its
}

// modelOf returns a model in which an answer must keep a condition beside the model's answer.
func modelOf(holds func(c call, keys model.Keys, got, want answer) bool) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return model.Keys{} },
		Step: func(state, input, output any) (bool, any) {
			keys, _ := state.(model.Keys)
			c, _ := input.(call)
			got, _ := output.(answer)
			next, want := step(keys, c)
			return holds(c, keys, got, want), next
		},
		Equal: func(a, b any) bool {
			x, _ := a.(model.Keys)
			y, _ := b.(model.Keys)
			return maps.EqualFunc(x, y, model.Key.Equal)
		},
	}
}

// step returns the keys after a call, and the answer.
func step(keys model.Keys, c call) (model.Keys, answer) {
	next := maps.Clone(keys)
	switch c.method {
	case peek:
		d, found := keys.Peek(&c.charges[0], c.now)
		return keys, answer{Answer: model.Answer{Decisions: []algorithms.Decision{d}, Found: []algorithms.Hold{found}}}
	case reset:
		return next, answer{forgotten: next.Reset(c.charges[:1])}
	default:
		return next, answer{Answer: next.Take(c.charges, c.now)}
	}
}

// explains reports whether the model's answer is the store's.
func (c call) explains(keys model.Keys, got, want answer) bool {
	if c.method != reset {
		return got.Admitted == want.Admitted && slices.Equal(got.Decisions, want.Decisions) && slices.Equal(got.Found, want.Found) &&
			slices.Equal(got.Phases, want.Phases)
	}
	k, known := keys[model.NameOf(&c.charges[0])]
	if c.charges[0].Limit.Algorithm == algorithms.Concurrency || known && (k.Unused() || k.IdleAt() <= c.now) {
		return true // a store may have forgotten an idle key, and may count a key of holders only, or not
	}
	return got.forgotten == want.forgotten
}

// promised reports whether the answer to a part keeps the promise of partsModel.
func (c call) promised(keys model.Keys, got, want answer) bool {
	if c.alone {
		return c.explains(keys, got, want)
	}
	if got.Admitted && !want.Admitted {
		return false
	}
	for i, d := range got.Decisions {
		if d.Allowed && (!want.Decisions[i].Allowed || d.Remaining > want.Decisions[i].Remaining && !c.waits) {
			return false
		}
	}
	return true
}
