// Package leased is a store in front of a shared one. Leased takes several hits of a hot key from the shared store at once, and
// spends them by itself. The shared store charges the hits first, so a fleet of such stores never admits more than one store would.
package leased
