// What a C program sees of a ring; the program is c_checks_test.c.
#include <gtest/gtest.h>

#include "lockstep/insitu/ring_test_support.h"

extern "C" const char* lockstep_insitu_c_checks(const char* name);

namespace lockstep::inline v0::insitu::ring_test {

TEST(RingInC, DoesWhatItsHeaderSays) {
  EXPECT_STREQ(lockstep_insitu_c_checks(own_name("c").c_str()), "");
}

}  // namespace lockstep::inline v0::insitu::ring_test
