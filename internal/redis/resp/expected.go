package resp

import (
	"bytes"
	"strings"
)

// kind is the rule for the reply to a command.
type kind uint8

const (
	ordinary    kind = iota
	topology         // the nodes of a cluster: may be long
	role             // at least one element
	primary          // host and port
	subscribe        // an error, or a push for each channel
	unsubscribe      // pushes, and no reply
	pong             // of the PING that follows each unsubscribe
	echo             // of a PING with a text
	ping             // of another PING: no list
)

// command is a command whose reply is special.
type command struct {
	number   uint64 // of all commands, from 0
	kind     kind
	channels int
	text     word // of a PING
}

// expected is the replies to come. expected follows the rules of rueidis v1.0.79 (pipe.go,
// _backgroundRead).
type expected struct {
	sent, answered uint64 // commands
	special        []command
	last           kind // of the last command
	skip           int  // confirmations of subscriptions still to come

	// rueidis makes a connection of its own for subscriptions in RESP2. After the login an array is a
	// push there.
	hello2, hello3 bool   // were sent; HELLO 2 alone makes such a connection
	login          uint64 // commands of the login
	loggedIn       bool   // all commands of the login were sent
}

// add adds a command that was read.
func (e *expected) add(c *commandReader) {
	k, first, second := ordinary, &c.words[0], &c.words[1]
	switch {
	case first.is("EVALSHA"): // the most frequent one
	case first.is("HELLO"):
		e.hello2, e.hello3 = e.hello2 || second.is("2"), e.hello3 || second.is("3")
	case first.is("CLUSTER"):
		k = topology
	case first.is("ROLE"):
		k = role
	case first.is("SENTINEL") && second.is("GET-MASTER-ADDR-BY-NAME"):
		k = primary
	case first.is("SUBSCRIBE"), first.is("PSUBSCRIBE"), first.is("SSUBSCRIBE"):
		k = subscribe
	case first.is("UNSUBSCRIBE"), first.is("PUNSUBSCRIBE"), first.is("SUNSUBSCRIBE"):
		k = unsubscribe
	case first.is("PING") && e.last == unsubscribe:
		k = pong
	case first.is("PING") && c.args == 2:
		k = echo
	case first.is("PING"):
		k = ping
	}
	if e.hello2 && !e.loggedIn && (k == subscribe || k == unsubscribe || first.is("PING")) {
		e.login, e.loggedIn = e.sent, true
	}
	if e.last = k; k != ordinary {
		e.special = append(e.special, command{e.sent, k, c.args - 1, *second})
	}
	e.sent++
}

// next returns the kind of the oldest command without a reply.
func (e *expected) next() kind {
	if len(e.special) > 0 && e.special[0].number == e.answered {
		return e.special[0].kind
	}
	return ordinary
}

// arrayIsPush reports whether rueidis takes the next array for a push.
func (e *expected) arrayIsPush() bool {
	return e.loggedIn && !e.hello3 && e.answered >= e.login
}

// done counts a reply.
func (e *expected) done() {
	if len(e.special) > 0 && e.special[0].number == e.answered {
		e.special = e.special[1:]
	}
	e.answered++
}

// reply checks the reply to the oldest command, and counts it.
func (e *expected) reply(r *replyReader) error {
	if e.sent == e.answered {
		return invalid("a reply without a command")
	}
	kind := e.next()
	isError, isList := r.typ == '-' || r.typ == '!', r.typ == '*' || r.typ == '~'
	text := string(r.text(0))
	switch {
	case (kind == subscribe || kind == unsubscribe) && text == "QUEUED":
		return invalid("a subscription inside a transaction")
	case (kind == unsubscribe || kind == pong) && len(text) == maxText:
		return invalid("an answer to PING of %d bytes or more", maxText)
	case isError && redirects(text):
		return invalid("an error that names no node")
	case kind == role && isList && r.elements < 1:
		return invalid("an answer to ROLE without a role")
	case kind == primary && isList && !r.null && r.elements < 2:
		return invalid("an address of a primary without host and port")
	case kind == subscribe && !isError:
		return invalid("a subscription that is neither confirmed nor refused")
	case kind == unsubscribe && isError:
		if isPong(r) {
			return invalid("an unsubscribe that is answered like a PING")
		}
	case kind == unsubscribe:
		if !isPong(r) || e.sent-e.answered < 2 {
			return invalid("an unsubscribe without a PONG")
		}
		e.done() // rueidis takes the PONG for the answer to both commands
	case kind == echo && !isError && !e.special[0].text.is(text):
		return invalid("a PING with the answer to another command")
	case kind == ping && r.elements > 0 && text != "pong":
		return invalid("a PING that is answered with a list") // rueidis may take it for a push, after a login that failed
	case kind == pong && !isPong(r):
		return invalid("a PING without a PONG")
	}
	e.done()
	return nil
}

// push checks a push, or in RESP2 a message of a subscription.
func (e *expected) push(r *replyReader) error {
	if r.elements < 2 {
		return nil // rueidis ignores the push
	}
	switch string(r.text(0)) {
	case "subscribe", "psubscribe", "ssubscribe":
		switch {
		case e.skip > 0:
			e.skip--
		case e.next() == subscribe:
			e.skip = e.special[0].channels - 1
			e.done()
		default:
			return invalid("a subscription without a command")
		}
	case "unsubscribe", "punsubscribe", "sunsubscribe":
		e.skip = max(0, e.skip-1) // Redis sends sunsubscribe also by itself
	case "message":
		words := map[string]int{"+sentinel": 4, "+reboot": 4, "+switch-master": 5}[string(r.text(1))]
		if r.elements >= 3 && 1+bytes.Count(r.text(2), []byte(" ")) < words {
			return invalid("a message of a Sentinel of too few words")
		}
	}
	return nil
}

// redirects reports whether rueidis takes an error for one that names another node, as `MOVED 3999
// 127.0.0.1:6381`, although the node is missing. rueidis reads `REDIRECT 127.0.0.1:6381` of Valkey
// only with Standalone.EnableRedirect, which redisconn never sets.
func redirects(text string) bool {
	said := strings.TrimPrefix(text, "ERR ")
	for _, prefix := range []string{"MOVED", "ASK"} {
		if strings.HasPrefix(said, prefix) {
			return strings.Count(said, " ") < 2
		}
	}
	return false
}

// isPong reports whether rueidis takes a reply for the answer to the PING that follows an
// unsubscribe.
func isPong(r *replyReader) bool {
	if r.typ == '-' {
		said := string(r.text(0))
		if strings.HasPrefix(said, "LOADING") || strings.HasPrefix(said, "BUSY") || strings.Contains(said, "'ping'") {
			return true
		}
	}
	if r.elements > 0 {
		return string(r.text(0)) == "pong"
	}
	return string(r.text(0)) == "PONG"
}
