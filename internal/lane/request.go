package lane

import "golang.org/x/net/http2/hpack"

// head is the header list of a request, checked.
type head struct {
	authority string
	metadata  []hpack.HeaderField
}
