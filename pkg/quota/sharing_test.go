package quota

import (
	"testing"
	"time"
)

// among returns a schedule of several processes.
func among(t *testing.T, number int, m mistake) (s *schedule, lasts time.Duration) {
	t.Helper()
	s = tested(t, number, m)
	s.addRedis(2+s.random.IntN(3), s.whole)
	s.harms = []int{4000, 12_000, 40_000}[s.random.IntN(3)]
	s.quiet = 110 * time.Second
	return s, 170 * time.Second
}

// amongMixed is among with requests of RLS in each process.
func amongMixed(t *testing.T, number int, m mistake) (s *schedule, lasts time.Duration) {
	t.Helper()
	s = tested(t, number, m)
	s.asks = []int{2000, 20_000}[number%2]
	s.addRedis(2+s.random.IntN(3), s.whole)
	s.harms = []int{4000, 12_000, 40_000}[s.random.IntN(3)]
	s.quiet = 110 * time.Second
	return s, 170 * time.Second
}

func TestBothProtocolsInSeveralProcessesAdmitAtMostTheLimit(t *testing.T) {
	t.Parallel()
	testNone(t, amongMixed, 70)
}

func TestTheOracleFindsEachMistakeOfRLSInSeveralProcesses(t *testing.T) {
	t.Parallel()
	testMistakes(t, amongMixed, hereMistakes, 480)
}

func TestSeveralProcessesAdmitAtMostTheLimit(t *testing.T) {
	t.Parallel()
	testNone(t, among, 70)
}

func TestTheOracleFindsEachMistakeOfSeveralProcesses(t *testing.T) {
	t.Parallel()
	testMistakes(t, among, sharingMistakes, 300)
}

func TestProcessesUseALimitTogether(t *testing.T) {
	t.Parallel()
	for _, c := range usesTested(0.9) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.use(t, 2)
		})
	}
}
