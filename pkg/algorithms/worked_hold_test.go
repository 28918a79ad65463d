package algorithms

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// hold carries out "at TIME begin HOLDER HITS [at most TIME]" or another phase of a holder.
func (e *example) hold(words []string, now Instant) (string, error) {
	phases := map[string]HoldPhase{"begin": HoldBegin, "begun": HoldBegun, "end": HoldEnd, "cancel": HoldCancel}
	m := message{phase: phases[words[2]], atMost: time.Hour, countRejected: e.countRejected}
	var err error
	switch n := len(words); {
	case n == 4 && m.phase == HoldCancel:
	case n == 8 && words[5] == "at" && words[6] == "most":
		m.atMost, err = time.ParseDuration(words[7])
	case n != 5:
		err = errors.New("must be HOLDER HITS [at most TIME]")
	}
	if err != nil {
		return "", err
	}
	if m.holder = words[3]; m.phase != HoldCancel {
		if m.hits, err = strconv.ParseInt(words[4], 10, 64); err != nil {
			return "", err
		}
	}
	d, want := e.key.do(m, now), e.reference.do(m, now)
	if d != want {
		return "", fmt.Errorf("decision is %+v, by the reference %+v", d, want)
	}
	return describe(d), nil
}
