package grants

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"time"

	"github.com/weirproxy/weir/pkg/limiter"
)

// change is one line of the journal. A Grant takes the slot. Without Grant and Ended, the slot is
// free. The version before has no Ended, and frees the slot of a grant that has ended.
type change struct {
	Slot  string          `json:"slot"`
	Grant json.RawMessage `json:"grant,omitempty"` // a record
	Ended *time.Time      `json:"ended,omitempty"` // when the grant in the slot was seen to have ended, by the wall clock; nil: not yet

	// With the slot positionSlot: up to which changes in Redis the lines before have all grants.
	Epoch   string `json:"epoch,omitempty"`
	Version uint64 `json:"version,omitempty"`
}

// positionSlot is the slot of no grant. The version before frees this slot, which changes nothing.
const positionSlot = "redis"

// maxLine bounds a line, in bytes. The longest grant takes 40 KB as JSON.
const maxLine = 64 << 10

// The last member of a line is the checksum of all bytes before that member: a CRC-32C, as 8
// hexadecimal digits. The version before wrote no such member, and ignores the member.
const (
	sumBegin = `,"sum":"`
	sumEnd   = `"}`
	sumSize  = len(sumBegin) + 8 + len(sumEnd)
)

func sum(text []byte) string {
	return fmt.Sprintf("%08x", crc32.Checksum(text, crc32.MakeTable(crc32.Castagnoli)))
}

// line returns the change with its checksum and a line break.
func (c change) line() ([]byte, error) {
	text, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	text = text[:len(text)-1]
	return fmt.Append(text, sumBegin, sum(text), sumEnd, "\n"), nil
}

// parseLine reads a line. summed says whether the line has a checksum. The slot of a line with a
// checksum is right also if the grant cannot be read, as a grant of a later version.
func parseLine(line []byte) (c change, g *limiter.Grant, summed bool, err error) {
	line = bytes.TrimSuffix(line, []byte("\n"))
	at := len(line) - sumSize
	summed = at >= 0 && bytes.HasPrefix(line[at:], []byte(sumBegin)) && bytes.HasSuffix(line, []byte(sumEnd))
	switch {
	case !summed: // no other member is allowed: else this is a line with a damaged checksum
		from := json.NewDecoder(bytes.NewReader(line))
		from.DisallowUnknownFields()
		if err = from.Decode(&c); err == nil {
			if _, more := from.Token(); more != io.EOF {
				err = errors.New("something stands behind the change")
			}
		}
	case string(line[at+len(sumBegin):at+len(sumBegin)+8]) != sum(line[:at]):
		err = errors.New("the checksum is wrong")
	default:
		err = json.Unmarshal(line, &c)
	}
	if err == nil && c.Slot == "" {
		err = errors.New("a change without a slot")
	}
	if err != nil {
		return change{}, nil, summed, err
	}
	if c.Grant != nil {
		g, err = decode(c.Grant)
	}
	return c, g, summed, err
}
