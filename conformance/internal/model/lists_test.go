package model

// mustPass are cases that a service passes which answers each request alike. Such a case asks
// whether the service survives a request, or gRPC itself answers. Health and drain are not in the
// lists.
func mustPass() map[string][]string {
	return map[string][]string{
		"always OK": {
			"hostile/override-of-unknown-unit", "hostile/override-of-no-unit", "hostile/override-of-a-negative-unit",
			"hostile/override-of-unknown-unit-beside-others", "hostile/empty-key", "hostile/value-of-50000-bytes",
			"hostile/value-of-3000000-bytes", "hostile/message-of-8-megabytes", "hostile/many-descriptors",
			"hostile/many-entries", "hostile/key-of-20000-bytes", "hostile/domain-of-20000-bytes",
			"hostile/invalid-utf-8", "hostile/truncated-message", "hostile/bad-wire-type",
			"hostile/varint-of-eleven-bytes", "hostile/unknown-fields", "hostile/unknown-method",
			"hostile/unknown-service", "hostile/retired-version-2", "hostile/gzip", "hostile/http-1",
			"hostile/garbage", "hostile/preface-alone", "hostile/short-deadlines",
			"hostile/deadline-of-envoy", "hostile/newline-in-a-key", "hostile/format-verbs",
		},
		"always over": {
			"hostile/unknown-fields", "hostile/unknown-method", "hostile/unknown-service",
			"hostile/retired-version-2",
		},
	}
}
