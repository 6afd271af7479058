#include "lockstep/plan/rows/published_rows.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <map>

namespace lockstep::inline v0::plan::published_rows_test {
namespace {

TEST(PublishedRows, Print) {
  const auto rows = hold(published_rows());
  for (const HeldRow& one : rows)
    std::printf("%-28s %-55s %8.3f %8.3f %+6.1f%%\n", one.row->source.c_str(),
                one.row->label.c_str(), one.estimate.step, one.row->step, 100 * one.time_error);
}

}  // namespace
}  // namespace lockstep::inline v0::plan::published_rows_test
