#include "lockstep/comm/internal/ranks_apart.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "lockstep/comm/same_on_all_ranks.h"
#include "lockstep/core/errors.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::ranks_apart_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const std::vector<std::string> kHosts{"a", "a", "b", "b", "c"};

std::string text(const std::vector<uint64_t>& hashes, size_t tensors, size_t ranks) {
  const auto apart = find_apart(hashes, tensors);
  if (!apart) return "";
  return apart_text(*apart, "w" + std::to_string(apart->tensor), "step 7",
                    std::span(kHosts).first(ranks));
}

TEST(RanksApart, NobodyIsWhereAllAreEqual) {
  EXPECT_FALSE(find_apart(std::vector<uint64_t>{1, 2, 3, 1, 2, 3}, 3));
  EXPECT_FALSE(find_apart(std::vector<uint64_t>{4}, 1));
  EXPECT_FALSE(find_apart({}, 0));
}

TEST(RanksApart, TheMinorityIsNamedWithItsHost) {
  // Tensor 1 is the first one in which rank 2 differs, and tensor 2 the next.
  const std::vector<uint64_t> hashes{1, 2, 3, 1, 2, 3, 1, 9, 9};
  const auto apart = find_apart(hashes, 3);
  ASSERT_TRUE(apart);
  EXPECT_EQ(apart->tensor, 1U);
  EXPECT_EQ(apart->count, 2U);
  EXPECT_THAT(apart->sides, ElementsAre(ElementsAre(0, 1), ElementsAre(2)));
  EXPECT_THAT(text(hashes, 3, 3),
              AllOf(HasSubstr("replicas differ at step 7: 'w1' of rank 2 (on b) is not that of the "
                              "other 2 ranks; it is the first of 2 tensors; "),
                    Not(HasSubstr("\n"))));
}

TEST(RanksApart, RankZeroMayBeTheOne) {
  EXPECT_THAT(text({9, 1, 1, 1}, 1, 4),
              HasSubstr("'w0' of rank 0 (on a) is not that of the other 3 ranks; a rank has"));
}

TEST(RanksApart, SeveralInTheMinorityAreNamedInOrder) {
  EXPECT_THAT(text({5, 1, 1, 6, 1}, 1, 5),
              HasSubstr("'w0' of ranks 0 (on a) and 3 (on b) is not that of the other 3 ranks"));
}

TEST(RanksApart, WithoutAMajorityAllAreNamed) {
  EXPECT_THAT(text({1, 2}, 1, 2),
              HasSubstr("'w0' is one thing on rank 0 (on a) and another on rank 1 (on a), and no "
                        "majority says which is right"));
  EXPECT_THAT(text({1, 2, 1, 2}, 1, 4),
              HasSubstr("is one thing on ranks 0 (on a) and 2 (on b) and another on ranks 1 (on a) "
                        "and 3 (on b), and no majority"));
  EXPECT_THAT(text({1, 2, 3}, 1, 3),
              HasSubstr("on rank 0 (on a), another on rank 1 (on a) and another on rank 2 (on b)"));
}

// The error on every rank; "" if there was none.
std::vector<std::string> errors_of(int ranks, const std::function<void(at::Tensor, int)>& change) {
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  testing::run_threads(ranks, [&](Communicator& comm) {
    const at::Tensor equal = at::full({3, 5}, 0.5), other = at::full({7}, 2.0);
    change(other, comm.rank());
    try {
      check_equal_values(comm, {{"equal", equal}, {"other", other}}, "step 3");
    } catch (const Mismatch& error) {
      errors[static_cast<size_t>(comm.rank())] = error.what();
    }
    comm.barrier();  // the communicator works as before
  });
  return errors;
}

TEST(EqualValues, OneBitIsFoundOnWhateverRank) {
  for (int broken = 0; broken < 3; ++broken) {
    const auto errors = errors_of(3, [&](const at::Tensor& tensor, int rank) {
      auto* bytes = static_cast<unsigned char*>(tensor.mutable_data_ptr());
      if (rank == broken) bytes[13] ^= 1;
    });
    for (const std::string& error : errors)
      EXPECT_THAT(error, HasSubstr("replicas differ at step 3: 'other' of rank " +
                                   std::to_string(broken) + " (on "));
  }
}

TEST(EqualValues, BitsAreComparedNotNumbers) {
  const auto nan = [](const at::Tensor& tensor, int) {
    tensor.fill_(std::numeric_limits<double>::quiet_NaN());
  };
  EXPECT_THAT(errors_of(2, nan), ElementsAre("", ""));
  const auto zero = [](const at::Tensor& tensor, int rank) {
    tensor.fill_(rank == 0 ? 0.0 : -0.0);
  };
  EXPECT_THAT(errors_of(2, zero), ElementsAre(HasSubstr("no majority"), HasSubstr("no majority")));
}

}  // namespace lockstep::inline v0::ranks_apart_test
