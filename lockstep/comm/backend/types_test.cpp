#include "lockstep/comm/backend/types.h"

#include <gtest/gtest.h>

#include <string>

namespace lockstep::inline v0::types_test {
namespace {

// Ranks compare these numbers, whatever they were built with: the published values of FNV-1a.
TEST(Fingerprint, OfATextIsTheSameEverywhere) {
  EXPECT_EQ(fingerprint(""), 0xcbf29ce484222325ULL);
  EXPECT_EQ(fingerprint("a"), 0xaf63dc4c8601ec8cULL);
  EXPECT_EQ(fingerprint("foobar"), 0x85944171f73967e8ULL);
}

TEST(Fingerprint, ANoteHasAKeyAndItsText) {
  const std::string text = "bucket 3 of step 17";
  const CallNote note = call_note(text);
  EXPECT_EQ(note.key, fingerprint(text) | 1);
  EXPECT_EQ(note.text, text.c_str());
  EXPECT_NE(call_note("bucket 4 of step 17").key, note.key);
}

}  // namespace
}  // namespace lockstep::inline v0::types_test
