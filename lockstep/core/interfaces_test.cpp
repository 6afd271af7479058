#include "lockstep/core/interfaces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace interfaces_test {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

const std::vector<InterfaceAddress> kHost = {
    {"lo", "127.0.0.1", true},   {"docker0", "172.17.0.1", false},
    {"eth0", "10.0.0.5", false}, {"ib0", "192.168.4.5", false},
    {"lo", "::1", true},         {"eth0", "2001:db8::5", false},
};

TEST(Interfaces, CandidatesAreTheLikeliestFirstWithoutLoopback) {
  EXPECT_THAT(candidate_addresses(kHost),
              ElementsAre("10.0.0.5", "192.168.4.5", "2001:db8::5", "172.17.0.1"));
}

TEST(Interfaces, AChoiceByNameOrAddress) {
  EXPECT_THAT(candidate_addresses(kHost, "eth0"), ElementsAre("10.0.0.5", "2001:db8::5"));
  EXPECT_THAT(candidate_addresses(kHost, "192.168.4.5"), ElementsAre("192.168.4.5"));
  EXPECT_THAT(candidate_addresses(kHost, "lo"), ElementsAre("127.0.0.1", "::1"));
  try {
    candidate_addresses(kHost, "eth7");
    ADD_FAILURE() << "no error";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("'eth7'"), HasSubstr("eth0 (10.0.0.5)")));
  }
}

TEST(Interfaces, TheInterfaceOfAnAddress) {
  EXPECT_EQ(interface_of(kHost, "192.168.4.5"), "ib0");
  EXPECT_EQ(interface_of(kHost, "1.2.3.4"), std::nullopt);
}

TEST(Interfaces, Loopback) {
  for (const char* address : {"127.0.0.1", "127.0.1.1", "::1"}) EXPECT_TRUE(is_loopback(address));
  for (const char* address : {"10.0.0.1", "12.7.0.1", "::2"}) EXPECT_FALSE(is_loopback(address));
}

TEST(Interfaces, ThisHostHasLoopback) {
  EXPECT_THAT(interface_addresses(), Contains(InterfaceAddress{"lo", "127.0.0.1", true}));
}

}  // namespace interfaces_test
}  // namespace lockstep::inline v0
