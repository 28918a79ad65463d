package lane

import (
	"slices"
	"strings"
	"time"
)

// Call is one call of the method. A Call is valid until [Handler.Answer] returns.
type Call struct {
	Stream  uint32        // unique on the connection
	Timeout time.Duration // left at Arrived, as the client has set it; 0: no timeout
	Arrived int64         // instant of the Receive that got the end of the message
	Large   bool          // the message is above Options.MaxInPlace, and belongs to the handler

	head *head
}

// Get returns the first value of that key in the metadata, "" without one. Upper case in key does
// not matter, and values of keys that end in "-bin" are decoded. Without Options.Metadata there are
// no values. Get, Set and Keys are the methods of a propagation.TextMapCarrier.
func (c *Call) Get(key string) string {
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
