package main

// removed is a variable of an earlier version, with which the service does not start.
type removed struct {
	name    string
	instead string // the constant or the variable in its place, for an error and the document
}

// removedVariables returns all variables of earlier versions. The original does not have them.
func removedVariables() []removed {
	return []removed{
		{"WEIR_ADMIN_HOSTS", "use WEIR_HOSTS, which is for the admin page and /json"},
		{"WEIR_HTTP_JSON_HOSTS", "use WEIR_HOSTS, which is for /json and the admin page"},
		{"WEIR_MAX_CONCURRENT_STREAMS", "a gRPC connection has at most 1024 requests under way; WEIR_MAX_BYTES_IN_FLIGHT bounds their memory"},
		{"WEIR_MAX_GRANTS", "there are at most 100000 grants, of about 1 KB each"},
		{"WEIR_MAX_HOLDS", "at most 1000000 requests in memory hold hits, of at most 64 bytes each"},
		{"WEIR_MAX_TABLE_BYTES", "all tables of rules together have at most 64 MiB"},
		{"WEIR_STATE_INTERVAL", "counts in WEIR_STATE_DIR are saved every 10s, or less often where a snapshot takes long"},
	}
}
