package lane

import (
	"bytes"
)

// Bounds of a cache of header blocks.
const (
	maxCached      = 8       // blocks
	maxCachedBytes = 512     // of one block
	maxCachedList  = 2 << 10 // bytes of the header list of one block
)

// cache remembers header blocks with their heads. A block that left the dynamic table unchanged
// means the same again as long as the table stays so. Clients with one configuration repeat one
// block for hours.
type cache struct {
	blocks []cached
	last   int // found last
	next   int // replaced next
}

type cached struct {
	block   []byte
	changes uint64 // of the decoder's table, when the block was decoded
	head    head
}

// find returns the head of a block, or nil. The head is valid until the next add.
func (c *cache) find(block []byte, changes uint64) *head {
	if c.last < len(c.blocks) {
		if b := &c.blocks[c.last]; b.changes == changes && bytes.Equal(b.block, block) {
			return &b.head
		}
	}
	for i := range c.blocks {
		if b := &c.blocks[i]; b.changes == changes && bytes.Equal(b.block, block) {
			c.last = i
			return &b.head
		}
	}
	return nil
}

// add remembers a block, in the place of the oldest one when the cache is full.
func (c *cache) add(block []byte, changes uint64, h head) {
	if len(block) > maxCachedBytes {
		return
	}
	if len(c.blocks) < maxCached {
		c.blocks = append(c.blocks, cached{})
	}
	b := &c.blocks[c.next]
	b.block, b.changes, b.head = append(b.block[:0], block...), changes, h
	c.last, c.next = c.next, (c.next+1)%maxCached
}
