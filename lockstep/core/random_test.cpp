// Expected values: CPython 3.11, `random.Random(seed)`.
#include "lockstep/core/random.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace random_test {

struct Expected {
  int64_t seed;
  uint64_t first[3];  // getrandbits(32)
  double real;        // random()
  uint64_t bit, bits33, bits63, bits64;
  uint64_t below1, below10, below_2_32, below_2_40_1, below_2_63;
};

constexpr Expected kExpected[] = {
    {0,
     {3626764237, 1654615998, 3255389356},
     0.890243920837131,
     0,
     5407006266,
     4481891911369680482,
     16938433693753131896ULL,
     0,
     7,
     598176026,
     553189221793,
     5721212930748269353},
    {1,
     {577090037, 2444712010, 3639700191},
     0.8022650611681835,
     0,
     1095513148,
     7018639715332314491,
     8711387064946514083,
     0,
     3,
     403123852,
     858288075698,
     4912931603392816429},
    {1234,
     {4150886329, 3342196574, 1892932127},
     0.11685051774599753,
     0,
     8207579248,
     7443283460211601105,
     644274044980223449,
     0,
     1,
     3292010550,
     35376828617,
     292204220720677448},
    {-1234,
     {4150886329, 3342196574, 1892932127},
     0.11685051774599753,
     0,
     8207579248,
     7443283460211601105,
     644274044980223449,
     0,
     1,
     3292010550,
     35376828617,
     292204220720677448},
    {2147483648,
     {1455117090, 1620553392, 2169224728},
     0.8786676219787155,
     1,
     4994694181,
     1062272784333197071,
     2268610503339659135,
     0,
     5,
     1994909319,
     392668178584,
     6315490672652656084},
    {4294967296,
     {485306839, 1508871100, 1794561286},
     0.9347212762883035,
     0,
     6922290953,
     7031281961490375168,
     15455483573206641377ULL,
     0,
     0,
     593069562,
     953297164300,
     5795197888586254797},
    {4294967301,
     {675479763, 2085189291, 1213270837},
     0.8899258643720599,
     1,
     62377729,
     1580140662990693877,
     17571132581927258294ULL,
     0,
     5,
     1040614771,
     432430348475,
     7434456083593592013},
    {std::numeric_limits<int64_t>::max(),
     {1359979423, 2819855560, 2711238091},
     0.1326851532128024,
     0,
     1947612296,
     7133887332915025840,
     15894570652892895378ULL,
     0,
     2,
     3038577698,
     243920856100,
     3152066216235563537},
    {std::numeric_limits<int64_t>::min(),
     {2377109768, 1691753470, 4039908392},
     0.20933427096899082,
     1,
     7951217179,
     3293575394761018677,
     6145916268999863860,
     0,
     7,
     4140643018,
     56878221287,
     1726442328904194494},
};

TEST(PythonRandom, EqualsCPython) {
  for (const Expected& e : kExpected) {
    SCOPED_TRACE(e.seed);
    PythonRandom rng(e.seed);
    for (const uint64_t value : e.first) EXPECT_EQ(rng.getrandbits(32), value);
    EXPECT_EQ(rng.random(), e.real);
    EXPECT_EQ(rng.getrandbits(1), e.bit);
    EXPECT_EQ(rng.getrandbits(33), e.bits33);
    EXPECT_EQ(rng.getrandbits(63), e.bits63);
    EXPECT_EQ(rng.getrandbits(64), e.bits64);
    EXPECT_EQ(rng.below(1), e.below1);
    EXPECT_EQ(rng.below(10), e.below10);
    EXPECT_EQ(rng.below(uint64_t{1} << 32), e.below_2_32);
    EXPECT_EQ(rng.below((uint64_t{1} << 40) + 1), e.below_2_40_1);
    EXPECT_EQ(rng.below(uint64_t{1} << 63), e.below_2_63);
  }
}

TEST(PythonRandom, GoesPastTheFirstBlockOfState) {
  PythonRandom rng(7);
  double last = 0;
  for (int i = 0; i < 2000; ++i) last = rng.random();
  EXPECT_EQ(last, 0.034373654913951945);
}

TEST(PythonRandom, ShufflesAsCPython) {
  std::vector<int> ten(10);
  std::iota(ten.begin(), ten.end(), 1);
  PythonRandom(1234).shuffle(ten);
  EXPECT_EQ(ten, (std::vector<int>{3, 9, 4, 6, 7, 5, 10, 1, 2, 8}));

  std::vector<int64_t> many(10000);
  std::iota(many.begin(), many.end(), 0);
  PythonRandom(123).shuffle(many);
  EXPECT_EQ(std::vector<int64_t>(many.begin(), many.begin() + 8),
            (std::vector<int64_t>{3084, 3767, 5940, 6817, 1887, 3066, 184, 1491}));
  int64_t weighted = 0;
  for (size_t i = 0; i < many.size(); ++i) weighted += static_cast<int64_t>(i) * many[i];
  EXPECT_EQ(weighted, 249476549549);

  std::vector<int> none, one{5};
  PythonRandom(1).shuffle(none);
  PythonRandom(1).shuffle(one);
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(one, std::vector<int>{5});
}

TEST(PythonRandom, RefusesWhatHasNoMeaning) {
  PythonRandom rng(0);
  EXPECT_THROW(rng.getrandbits(0), InvalidArgument);
  EXPECT_THROW(rng.getrandbits(65), InvalidArgument);
  EXPECT_THROW(rng.below(0), InvalidArgument);
}

}  // namespace random_test
}  // namespace lockstep::inline v0
