package limiter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/weirproxy/weir/pkg/descriptors"
)

// Result is the answer to one descriptor, for programs that need no more.
type Result struct {
	Allowed    bool
	Limit      uint32        // requests per period of the limit that decided; 0 when no limit applies
	Remaining  uint32        // hits that would pass now; 0 when no limit applies
	RetryAfter time.Duration // shortest wait after which the same hit passes without other traffic; 0 when allowed
	ResetAfter time.Duration // wait until the key is idle; 0 when no limit applies
}

// Allow charges one hit to the descriptor with these entries and returns the decision. A descriptor
// that no limit applies to is allowed. Allow fails as [Limiter.Check] does; the caller then decides
// whether the request passes.
func (l *Limiter) Allow(ctx context.Context, domain string, entries ...Entry) (Result, error) {
	c, _ := l.calls.Get().(*call)
	defer l.calls.Put(c)
	c.request.Reset()
	c.request.Domain = domain
	d := c.request.Add()
	d.Entries = append(d.Entries, entries...)
	if err := l.Check(ctx, &c.request, &c.verdict); err != nil {
		return Result{}, err
	}
	result := Result{Allowed: !c.verdict.OverLimit}
	if s := &c.verdict.Statuses[0]; s.Outcome == Limited {
		result.Limit, result.Remaining, result.ResetAfter = s.Limit.Requests, s.Decision.Remaining, s.Decision.ResetAfter
		if !result.Allowed {
			result.RetryAfter = s.Decision.RetryAfter
		}
	}
	return result, nil
}

// call is a request of Allow and its verdict. Calls are reused.
type call struct {
	request Request
	verdict Verdict
}

// ErrNoDocuments is the error of [Limiter.Load] and [Limiter.LoadFiles] without a document, such as
// for a pattern that matches no file.
var ErrNoDocuments = errors.New("there is no rule document to load")

// Load puts the rules of documents in force, in place of all earlier rules, and returns likely
// mistakes in the documents. The error is a [descriptors.Errors] of every mistake, or
// [ErrNoDocuments]; the earlier rules then stay in force. Counts survive, see [Limiter.SetRules].
func (l *Limiter) Load(documents ...descriptors.Source) ([]descriptors.Warning, error) {
	return l.load(documents, nil)
}

// load is Load, unless an error came before: then load only adds the mistakes in the documents to
// that error.
func (l *Limiter) load(documents []descriptors.Source, before error) ([]descriptors.Warning, error) {
	if len(documents) == 0 && before == nil {
		return nil, ErrNoDocuments
	}
	rules, warnings, err := descriptors.Load(documents, descriptors.Options{
		MaxLogEntries: l.options.MaxLogEntries, DropRejected: l.options.DropRejected,
	})
	if before != nil {
		err = errors.Join(before, err)
	}
	if err != nil {
		return warnings, err
	}
	l.SetRules(rules)
	return warnings, nil
}

// LoadFiles is [Limiter.Load] of rule files, and of the tables that they name. The error also names
// every file that cannot be read, beside the mistakes in the others.
func (l *Limiter) LoadFiles(paths ...string) ([]descriptors.Warning, error) {
	var (
		documents []descriptors.Source
		errs      []error
		tables    = make(map[string]*descriptors.Table)
	)
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			errs = append(errs, fmt.Errorf("read rules: %w", err))
			continue
		}
		documents = append(documents, descriptors.Source{Name: path, Data: data, Table: tablesOf(path, tables)})
	}
	return l.load(documents, errors.Join(errs...))
}

// tablesOf returns the tables that a rule file may name. Tables of the same path are read once.
func tablesOf(file string, known map[string]*descriptors.Table) func(name string) (*descriptors.Table, error) {
	return func(name string) (*descriptors.Table, error) {
		path := descriptors.TablePath(file, name)
		if known[path] != nil {
			return known[path], nil
		}
		info, err := os.Stat(path)
		if err != nil {
			return nil, fmt.Errorf("read table: %w", err)
		}
		if text, tooLarge := (descriptors.Options{}).TableTooLarge(int(info.Size()), 0); tooLarge {
			return nil, fmt.Errorf("%s: %s", path, text)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read table: %w", err)
		}
		known[path] = descriptors.NewTable(path, data)
		return known[path], nil
	}
}
