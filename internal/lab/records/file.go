package records

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"
)

// maxWindow bounds the memory that a compressed file makes its reader take, in bytes. `zstd --long`
// writes such files.
const maxWindow = 128 << 20

// source is an open file of lines.
type source struct {
	io.Reader
	name    string
	regular bool
	size    int64 // of a regular file in bytes, perhaps compressed
	read    *counter
	file    io.Closer
	zstd    *zstd.Decoder // nil of a file that is not compressed
}

// counter counts the bytes that it passes on.
type counter struct {
	io.Reader
	into *atomic.Int64 // may be nil
}

// Read implements [io.Reader].
func (c *counter) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if c.into != nil {
		c.into.Add(int64(n))
	}
	return n, err
}

// openFile opens a file. The first bytes say whether the file is compressed.
func openFile(path string) (*source, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		err = fmt.Errorf("%s: is a directory", path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	s, err := newSource(path, f, f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	s.regular, s.size = info.Mode().IsRegular(), info.Size()
	return s, nil
}

// newSource returns the source of an open file.
func newSource(name string, in io.Reader, file io.Closer) (*source, error) {
	s := &source{name: name, file: file, read: &counter{Reader: in}}
	head := bufio.NewReaderSize(s.read, 1<<16)
	s.Reader = head
	magic := []byte{0x28, 0xb5, 0x2f, 0xfd} // RFC 8878, section 3.1.1
	switch begin, _ := head.Peek(len(magic)); {
	case len(begin) == 0 || !bytes.HasPrefix(magic, begin):
		return s, nil
	case len(begin) < len(magic): // cut off before its first line
		s.Reader = bytes.NewReader(nil)
		return s, nil
	}
	var err error
	s.zstd, err = zstd.NewReader(head, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	s.Reader = s.zstd
	return s, nil
}

// Close frees the file.
func (s *source) Close() error {
	if s.zstd != nil {
		s.zstd.Close()
	}
	return s.file.Close()
}
