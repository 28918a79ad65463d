package lane

import (
	"slices"
	"strings"
	"time"
)

// Call is one call of the method. A Call is valid until [Handler.Answer] returns; Clone gives a copy that stays.
type Call struct {
	Stream  uint32        // unique on the connection
	Timeout time.Duration // left at Arrived, as the client has set it; 0: no timeout
	Arrived int64         // instant of the Receive that got the end of the message
	Large   bool          // the message is above Options.MaxInPlace, and belongs to the handler

	head *head
}

// Clone returns a copy of the call that is valid for good.
func (c *Call) Clone() *Call {
	clone := *c
	h := *c.head
	h.metadata = slices.Clone(h.metadata)
	clone.head = &h
	return &clone
}

// Authority returns the :authority of the request, or the host without one. The bytes are valid as long as the call.
func (c *Call) Authority() string { return c.head.authority }

// Get returns the first value of that key in the metadata, "" without one. Upper case in key does not matter, and values of keys that end in
// "-bin" are decoded. Without Options.Metadata only ":authority" has a value. Get, Set and Keys are the methods of a
// propagation.TextMapCarrier.
func (c *Call) Get(key string) string {
	if key == ":authority" {
		return c.head.authority
	}
	for _, f := range c.head.metadata {
		if strings.EqualFold(f.Name, key) {
			return f.Value
		}
	}
	return ""
}

// Set does nothing: the metadata of a call does not change.
func (c *Call) Set(string, string) {}

// Keys returns the keys of the metadata, each one once.
func (c *Call) Keys() []string {
	var keys []string
	for _, f := range c.head.metadata {
		if !slices.Contains(keys, f.Name) {
			keys = append(keys, f.Name)
		}
	}
	return keys
}
