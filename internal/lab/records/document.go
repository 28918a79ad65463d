package records

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
)

// document is a line for package json.
type document struct {
	At          *string              `json:"at"`
	Domain      string               `json:"domain"`
	Descriptors []descriptorDocument `json:"descriptors"`
	Hits        uint32               `json:"hits"`
	OverLimit   *bool                `json:"over_limit"`
}

type descriptorDocument struct {
	Entries  []entryDocument   `json:"entries"`
	Hits     *uint32           `json:"hits"`
	Refund   bool              `json:"refund"`
	Override *overrideDocument `json:"override"`
}

type entryDocument struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

type overrideDocument struct {
	Requests   uint32 `json:"requests"`
	Unit       string `json:"unit"`
	Multiplier uint32 `json:"multiplier"`
}

// parseDocument is parse for every line. The error lists all mistakes of a line that is JSON of the
// right form.
func parseDocument(line string, r *Record) error {
	d := json.NewDecoder(strings.NewReader(line))
	d.DisallowUnknownFields()
	var doc document
	if err := d.Decode(&doc); err != nil {
		return plainer(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more behind the object: must be one object on one line")
	}
	return doc.record(r)
}

// plainer returns an error of package json without Go's types.
func plainer(err error) error {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		want := map[string]string{
			"string": "a text", "bool": "true or false", "uint32": "a whole number from 0 to 4294967295", "slice": "a list",
		}[wrong.Type.Kind().String()]
		if want == "" {
			want = "an object"
		}
		if wrong.Field == "" {
			return fmt.Errorf("is a JSON %s: must be %s", wrong.Value, want)
		}
		return fmt.Errorf("%s: is a JSON %s: must be %s", wrong.Field, wrong.Value, want)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return errCutOff
	}
	if name, found := strings.CutPrefix(err.Error(), "json: unknown field "); found {
		return fmt.Errorf("%s: is not a name of a record, must be at, domain, descriptors, hits or over_limit; "+
			"of a descriptor entries, hits, refund or override; of an entry key or value; of an override requests, unit or multiplier", name)
	}
	return fmt.Errorf("is not JSON: %w", err)
}

// errCutOff is the error of a line that is the beginning of an object.
var errCutOff = errors.New("is cut off: must be one JSON object on one line")

// record fills in r. The error lists all mistakes.
func (d *document) record(r *Record) error {
	r.Request.Reset()
	r.Request.Domain, r.Request.Hits, r.Answer = d.Domain, d.Hits, Unknown
	if d.OverLimit != nil {
		r.Answer = Passed
		if *d.OverLimit {
			r.Answer = OverLimit
		}
	}
	var errs []error
	switch {
	case d.At == nil:
		errs = append(errs, errors.New("at: is missing: must be an instant such as 2026-11-23T04:31:55.123Z"))
	default:
		var err error
		r.At, err = instant(*d.At)
		errs = append(errs, err)
	}
	if d.Domain == "" {
		errs = append(errs, errors.New("domain: must not be empty"))
	}
	if len(d.Descriptors) == 0 {
		errs = append(errs, errors.New("descriptors: must not be empty"))
	}
	for i := range d.Descriptors {
		if err := d.Descriptors[i].descriptor(r.Request.Add()); err != nil {
			errs = append(errs, fmt.Errorf("descriptors[%d].%w", i, err))
			break // a line may hold many
		}
	}
	return errors.Join(errs...)
}

// descriptor fills in to. The error is the first mistake.
func (d *descriptorDocument) descriptor(to *limiter.Descriptor) error {
	for i, e := range d.Entries {
		if e.Key == "" {
			return fmt.Errorf("entries[%d].key: must not be empty", i)
		}
		to.Entries = append(to.Entries, limiter.Entry(e))
	}
	if d.Entries == nil {
		return errors.New("entries: is missing: must be a list")
	}
	if d.Hits != nil {
		to.Hits, to.Probe = uint64(*d.Hits), *d.Hits == 0
	}
	to.Refund = d.Refund
	if o := d.Override; o != nil {
		unit, ok := descriptors.ParseUnit(o.Unit)
		if !ok {
			return fmt.Errorf("override.unit: %q: must be second, minute, hour, day, week, month or year", o.Unit)
		}
		to.Override = &limiter.Override{Requests: o.Requests, Unit: unit, Multiplier: o.Multiplier}
	}
	return nil
}
