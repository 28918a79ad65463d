package grants

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/weirproxy/weir/pkg/limiter"
)

// record is a grant as the state directory and Redis have it: one line of JSON. Unknown fields are
// ignored, so that an older version can read the grants of a later one.
type record struct {
	ID        string      `json:"id"`
	Domain    string      `json:"domain"`
	Entries   [][2]string `json:"entries"` // key and value
	Limit     string      `json:"limit,omitempty"`
	Requests  *uint64     `json:"requests,omitempty"`
	Burst     uint32      `json:"burst,omitempty"`
	Factor    float64     `json:"factor,omitempty"`
	Unlimited bool        `json:"unlimited,omitempty"`
	Add       uint64      `json:"add,omitempty"`
	Over      uint64      `json:"over,omitempty"` // with Add
	From      *time.Time  `json:"from,omitempty"` // with Add
	Until     time.Time   `json:"until"`
	Given     time.Time   `json:"given"`
	Reason    string      `json:"reason"`
	By        string      `json:"by,omitempty"`
	Rule      string      `json:"rule,omitempty"`
}

// encode returns a grant as a line without its end.
func encode(g *limiter.Grant) []byte {
	r := record{
		ID: g.ID, Domain: g.Domain, Limit: g.Limit, Burst: g.Burst, Unlimited: g.Gives == limiter.GivesUnlimited,
		Until: g.Until.UTC(), Given: g.Given.UTC(), Reason: g.Reason, By: g.By, Rule: g.Rule,
	}
	for _, e := range g.Entries {
		r.Entries = append(r.Entries, [2]string{e.Key, e.Value})
	}
	switch g.Gives {
	case limiter.GivesRequests:
		r.Requests = &g.Requests
	case limiter.GivesFactor:
		r.Factor = g.Factor
	case limiter.GivesAdd:
		from := g.From.UTC()
		r.Add, r.Over, r.From = g.Requests, g.Over, &from
	case limiter.GivesUnlimited:
	}
	line, err := json.Marshal(r)
	if err != nil { // no field of a valid grant fails
		return nil
	}
	return line
}

// decode reads a grant, which must be valid but may have ended.
func decode(line []byte) (*limiter.Grant, error) {
	var r record
	if err := json.Unmarshal(line, &r); err != nil {
		return nil, err
	}
	g := &limiter.Grant{
		ID: r.ID, Domain: r.Domain, Limit: r.Limit, Burst: r.Burst, Factor: r.Factor, Until: r.Until, Given: r.Given,
		Reason: r.Reason, By: r.By, Rule: r.Rule,
	}
	for _, e := range r.Entries {
		g.Entries = append(g.Entries, limiter.Entry{Key: e[0], Value: e[1]})
	}
	switch {
	case r.Unlimited:
		g.Gives = limiter.GivesUnlimited
	case r.Requests != nil:
		g.Gives, g.Requests = limiter.GivesRequests, *r.Requests
	case r.Factor != 0:
		g.Gives = limiter.GivesFactor
	case r.Add != 0 && r.From != nil:
		g.Gives, g.Requests, g.Over, g.From = limiter.GivesAdd, r.Add, r.Over, *r.From
	}
	if g.ID == "" {
		return nil, errors.New("a grant without an id")
	}
	if err := g.Validate(g.Until.Add(-1)); err != nil { // the end may have come
		return nil, fmt.Errorf("grant %.40q: %w", g.ID, err)
	}
	return g, nil
}

// newID returns an ID that no other grant has: 64 random bits.
func newID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // which never fails
	return hex.EncodeToString(b[:])
}

// scope names the limits that a grant changes, whichever name the grant has for them: "" for all
// limits of the rule, else their labels. A grant that adds hits has a scope of its own.
func scope(g *limiter.Grant, of limiter.Grantable) string {
	if g.Gives == limiter.GivesAdd {
		return "+" + g.ID
	}
	if len(of.Limits) == len(of.Rule.Limits) {
		return ""
	}
	var labels []string
	for _, limit := range of.Limits {
		labels = append(labels, limit.Label())
	}
	return strings.Join(labels, ",")
}

// slot names the key and limit that a grant is for: of two grants with the same slot only the later
// one is kept.
func slot(key, limit string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d:%s%s", len(key), key, limit))
	return base64.RawURLEncoding.EncodeToString(sum[:18])
}
