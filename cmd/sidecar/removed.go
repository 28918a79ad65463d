package main

import "fmt"

// removed is a setting of an earlier version. A sidecar that is given one does not start.
type removed struct {
	name    string // as in setting
	instead string // the constant or the setting in its place, for an error and docs/settings.md
}

func removedSettings() []removed {
	return []removed{
		{"xds-max-message-bytes", "a response of the xDS server has at most 64 MiB; --max-rules-bytes bounds the rules in it"},
		{"http-json-hosts", "use --hosts, which is for /json and the admin page"},
		{"admin-hosts", "use --hosts, which is for the admin page and /json"},
		{"grpc-reuseport", "--grpc-address is of one process; use an address or a --grpc-socket for each"},
		{"redis-username", "put user:password into --redis-password-file, or into the URL of --redis-url"},
		{"redis-password", "put password or user:password into --redis-password-file, or into the URL of --redis-url"},
		{"redis-sentinel-username", "put user:password into --redis-sentinel-password-file"},
		{"redis-sentinel-password", "put password or user:password into --redis-sentinel-password-file"},
		{"redis-tls-any-server-name", "use --redis-tls-server-name=* for any name"},
		{"redis-deny-cache", "a denied key is denied from memory for at most 1s"},
		{"state-interval", "counts in --state-dir are saved every 10s, or less often where a snapshot takes long"},
		{"max-holds", "use --max-keys, which also bounds the requests that hold hits"},
		{"max-log-entries", "requests_per_unit of a sliding_window_log is at most 10000; sliding_window_counter takes any number"},
		{"max-table-bytes", "all tables of rules together have at most 64 MiB"},
		{"max-descriptors", "a request has at most 1000 descriptors; --max-request-bytes bounds its size"},
		{"max-concurrent-streams", "a gRPC connection has at most 1024 requests under way; --max-bytes-in-flight bounds their memory"},
		{"max-grants", "there are at most 100000 grants, of about 1 KB each"},
		{"limit-header", "the name is RateLimit-Limit; --response-headers chooses among three styles"},
		{"remaining-header", "the name is RateLimit-Remaining; --response-headers chooses among three styles"},
		{"reset-header", "the name is RateLimit-Reset; --response-headers chooses among three styles"},
		{"tracing", "spans are sent where OTEL_EXPORTER_OTLP_ENDPOINT names a collector, or with OTEL_TRACES_EXPORTER=otlp"},
		{"reload-debounce", "rule files are read when they have not changed for 100ms"},
		{"reload-poll", "rule files are also compared every 30s, in case an event was lost"},
	}
}

// notASetting is the error of a name that is no setting. written is the name as the operator wrote
// it. name is the same in the form of a flag. guess is the end of the text for an unknown name.
func notASetting(written, name, guess string) error {
	for _, r := range removedSettings() {
		if r.name == name {
			return fmt.Errorf("%s: is not a setting any more: %s", written, r.instead)
		}
	}
	return fmt.Errorf("%s: is not a setting%s", written, guess)
}
