package inflight

// stream is an open stream.
type stream struct {
	id       uint32
	complete bool  // the first message is there, or the client has nothing more to send
	ended    bool  // waits to be dropped from the list
	replied  bool  // a part of the answer is sent
	bytes    int64 // that the stream holds
	opened   int64 // instant
	got      int64 // bytes of messages so far
	want     int64 // bytes of the first message; 0: not known
}

// keptStreams is the number of streams for which an idle connection keeps memory.
const keptStreams = 64

// streams are the open streams of a connection, in the order of their numbers, which is the order
// of their headers. The zero value is empty. Not safe for concurrent use.
type streams struct {
	list  []stream // from first on; ended ones among them
	first int
	open  int
	most  int    // streams at once, so far
	last  uint32 // the largest number so far
}

// add appends a stream.
func (s *streams) add(id uint32, bytes, now int64) *stream {
	if len(s.list) == cap(s.list) && s.open <= len(s.list)/2 {
		s.compact()
	}
	s.last = id
	s.open++
	s.most = max(s.most, s.open)
	s.list = append(s.list, stream{id: id, bytes: bytes, opened: now})
	return &s.list[len(s.list)-1]
}

// compact drops the streams that have ended.
func (s *streams) compact() {
	kept := s.list[:0]
	for i := s.first; i < len(s.list); i++ {
		if !s.list[i].ended {
			kept = append(kept, s.list[i])
		}
	}
	s.list, s.first = kept, 0
}

// find returns the stream with that number, or nil when it is not open.
func (s *streams) find(id uint32) *stream {
	low, high := s.first, len(s.list)
	for low < high {
		if at := int(uint(low+high) >> 1); s.list[at].id < id {
			low = at + 1
		} else {
			high = at
		}
	}
	if low == len(s.list) || s.list[low].id != id || s.list[low].ended {
		return nil
	}
	return &s.list[low]
}

// end drops the stream with that number and returns the bytes that it held; 0 when it is not open.
func (s *streams) end(id uint32) int64 {
	found := s.find(id)
	if found == nil {
		return 0
	}
	bytes := found.bytes
	found.ended = true
	if s.open--; s.open == 0 {
		if s.list, s.first = s.list[:0], 0; cap(s.list) > keptStreams {
			s.list = nil
		}
		return bytes
	}
	for s.list[s.first].ended {
		s.first++
	}
	return bytes
}

// oldest returns the stream that was opened first, or nil.
func (s *streams) oldest() *stream {
	if s.open == 0 {
		return nil
	}
	return &s.list[s.first]
}

// waits reports whether a stream from before the cutoff has not got its first message.
func (s *streams) waits(cutoff int64) bool {
	for i := s.first; i < len(s.list) && s.list[i].opened < cutoff; i++ {
		if !s.list[i].ended && !s.list[i].complete {
			return true
		}
	}
	return false
}
