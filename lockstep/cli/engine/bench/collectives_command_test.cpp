#include "lockstep/cli/engine/bench/collectives_command.h"

#include <gtest/gtest.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::engine::collectives_command_test {
namespace {

// The parent refuses it once, instead of every rank.
TEST(CollectivesCommand, UnknownBackendsAreToldTheChoices) {
  EXPECT_NO_THROW(parse_bench_arguments({"--backends", "shm,hierarchical:mpi,mpi-raw"}));
  EXPECT_NE(message_of<InvalidArgument>([] {
              parse_bench_arguments({"--backends", "nosuch"});
            }).find("backend 'nosuch' is not known; there are local, shm"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep::inline v0::engine::collectives_command_test
