package app

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/internal/lab/records"
)

// Record is the directory in which all requests are recorded. Without a Dir it is off.
type Record struct {
	Setting  string // name of the setting with the directory, for errors
	Dir      string
	MaxBytes int      // see records.Options
	Hash     []string // keys whose values are hashed
	SaltFile string   // with the salt of the hashes; "" means a random one
}

// record opens the recorder, and registers its metrics. The result is nil without a directory.
func (c *Config) record(ctx context.Context, registry prometheus.Registerer) (*records.Recorder, error) {
	if c.Record.Dir == "" {
		return nil, nil //nolint:nilnil // see above
	}
	o := records.Options{Dir: c.Record.Dir, MaxBytes: int64(c.Record.MaxBytes), HashValues: c.Record.Hash, Logger: c.Logger}
	if c.Record.SaltFile != "" {
		var err error
		if o.Salt, err = records.ReadSalt(c.Record.SaltFile); err != nil {
			return nil, fmt.Errorf("%s: salt: %w", c.Record.Setting, err)
		}
	}
	recorder, err := records.NewRecorder(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Record.Setting, err)
	}
	if err := registry.Register(recorder.Metrics()); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return recorder, nil
}

// Check returns every mistake. hash and salt are the names of the settings with Hash and SaltFile.
func (r *Record) Check(hash, salt string) []error {
	var errs []error
	if r.Dir == "" && len(r.Hash) > 0 {
		errs = append(errs, fmt.Errorf("%s: nothing is recorded: needs %s", hash, r.Setting))
	}
	if r.SaltFile != "" && len(r.Hash) == 0 {
		errs = append(errs, fmt.Errorf("%s: there is nothing to hash: needs %s", salt, hash))
	}
	return errs
}
