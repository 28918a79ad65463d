package parts

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// A Proxy is a TCP proxy in this process that makes the faults of a network between its clients and one address: slow answers, resets,
// data that vanishes, nobody there. Faults add up until Clear. A connection that ends here is always ended by a reset (RST). It is safe
// for concurrent use. Make one with StartProxy; whoever starts one ends it, with Close.
type Proxy struct {
	address string

	mu     sync.Mutex // guards what follows
	proxy  *toxiproxy.Proxy
	faults []string // names of the toxics that Clear removes
}

// StartProxy listens on a free port of 127.0.0.1 and passes everything on to upstream, a host:port where nobody needs to be yet.
func StartProxy(upstream string) (*Proxy, error) {
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	var err error
	for range 10 {
		// Not port 0: the port must still be there after Down, see firstPort.
		port, portErr := freePort()
		if portErr != nil {
			return nil, fmt.Errorf("starting a proxy: %w", portErr)
		}
		p := &Proxy{address: loopback(port), proxy: toxiproxy.NewProxy(server, "proxy", loopback(port), upstream)}
		// A toxic for no connection, but the library sets the socket option with which closing means a reset where it sees one,
		// and only on new connections: without this one Reset would end older ones in peace.
		if err := p.add("linger", "reset_peer", "downstream", 0, ""); err != nil {
			return nil, err
		}
		if err = p.proxy.Start(); err == nil {
			return p, nil
		}
	}
	return nil, fmt.Errorf("starting a proxy: %w", err)
}

// Address is its host:port, the same after Down and Up.
func (p *Proxy) Address() string { return p.address }

// Down resets all connections at once and refuses new ones until Up.
func (p *Proxy) Down() { p.proxy.Stop() }

// Up listens again after Down. The faults are as they were.
func (p *Proxy) Up() error {
	if err := p.proxy.Start(); err != nil && !errors.Is(err, toxiproxy.ErrProxyAlreadyStarted) {
		return fmt.Errorf("proxy %s: listening again: %w", p.address, err)
	}
	return nil
}

// Cut resets all connections at once, and takes new ones.
func (p *Proxy) Cut() error {
	p.Down()
	return p.Up()
}

// Latency delays each answer by d, give or take jitter, both in whole milliseconds. A second call replaces the first.
func (p *Proxy) Latency(d, jitter time.Duration) error {
	attributes := fmt.Sprintf(`"latency": %d, "jitter": %d`, d.Milliseconds(), jitter.Milliseconds())
	return p.fault("latency", "latency", "downstream", attributes)
}

// Reset resets each connection, old or new, when the first answer comes back on it: what was asked is done, and the client never knows.
func (p *Proxy) Reset() error {
	return p.fault("reset", "reset_peer", "downstream", `"timeout": 0`)
}

// HalfOpen lets all data vanish, both ways, while connections stay open and new ones are taken. Clear then resets those from which
// something can have vanished.
func (p *Proxy) HalfOpen() error {
	return errors.Join(
		p.fault("vanish-up", "timeout", "upstream", `"timeout": 0`),
		p.fault("vanish-down", "timeout", "downstream", `"timeout": 0`),
	)
}

// Mute lets all answers vanish, and passes on what is asked: it is done, and the client waits. Clear then resets those connections.
func (p *Proxy) Mute() error {
	return p.fault("vanish-down", "timeout", "downstream", `"timeout": 0`)
}

// Clear takes all faults away, but does not undo Down.
func (p *Proxy) Clear() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.faults) > 0 {
		if err := p.removeLocked(p.faults[0]); err != nil {
			return err
		}
	}
	return nil
}

// Close resets all connections and stops listening.
func (p *Proxy) Close() { p.Down() }

// fault adds a toxic that Clear removes, in place of one with that name.
func (p *Proxy) fault(name, kind, stream, attributes string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.removeLocked(name); err != nil {
		return err
	}
	if err := p.add(name, kind, stream, 1, attributes); err != nil {
		return err
	}
	p.faults = append(p.faults, name)
	return nil
}

// removeLocked takes a fault away; there may be none with that name.
func (p *Proxy) removeLocked(name string) error {
	for i, fault := range p.faults {
		if fault == name {
			p.faults = append(p.faults[:i], p.faults[i+1:]...)
			if err := p.proxy.Toxics.RemoveToxic(context.Background(), name); err != nil {
				return fmt.Errorf("proxy %s: removing %s: %w", p.address, name, err)
			}
			return nil
		}
	}
	return nil
}

// add adds a toxic that acts on that share of all connections.
func (p *Proxy) add(name, kind, stream string, share int, attributes string) error {
	text := fmt.Sprintf(`{"name": %q, "type": %q, "stream": %q, "toxicity": %d, "attributes": {%s}}`, name, kind, stream, share, attributes)
	if _, err := p.proxy.Toxics.AddToxicJson(strings.NewReader(text)); err != nil {
		return fmt.Errorf("proxy %s: adding %s: %w", p.address, name, err)
	}
	return nil
}
