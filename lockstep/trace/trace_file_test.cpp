#include "lockstep/trace/trace_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <fstream>
#include <functional>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::trace {
namespace trace_file_test {

using testing::HasSubstr;

CallRecord full_record() {
  CallRecord call;
  call.sequence = 1ULL << 60;
  call.fingerprint = 0xfedcba9876543210;
  call.begun = 1000;
  call.ended = 2000;
  call.elements = 421642;
  call.root = 2;
  call.peer = 3;
  call.tag = 4;
  call.line = 120;
  call.group = 4000000000;
  call.moving = 1;
  std::string("all_reduce").copy(call.op, sizeof call.op);
  std::string("sum").copy(call.reduce, sizeof call.reduce);
  std::string("float32").copy(call.dtype, sizeof call.dtype);
  std::string("trainer \"x\".cpp").copy(call.file, sizeof call.file);
  std::string("bucket 3 of step 17").copy(call.note, sizeof call.note);
  return call;
}

TEST(TraceFile, ComesBackAsItWas) {
  const TestDirectory folder;
  CallBoard board = CallBoard::create(2);
  board.enter(1, 42);
  board.begin(1, full_record());
  const TraceFile written = trace_of(board, 1, 5, 8, "rank 3 was killed by SIGKILL");
  const auto path = write_trace(folder / "new/folder", written);
  EXPECT_EQ(path.filename(), "rank5.json");
  const TraceFile read = read_trace(path);
  EXPECT_EQ(read.rank, 5);
  EXPECT_EQ(read.world_size, 8);
  EXPECT_EQ(read.local_rank, 1);
  EXPECT_EQ(read.pid, 42u);
  EXPECT_EQ(read.host, host_name());
  EXPECT_EQ(read.reason, "rank 3 was killed by SIGKILL");
  EXPECT_EQ(read.now.ticks, written.now.ticks);
  EXPECT_EQ(read.now.unix_ns, written.now.unix_ns);
  EXPECT_EQ(read.entered.ticks, written.entered.ticks);
  ASSERT_EQ(read.calls.size(), 1u);
  const CallRecord expected = full_record();
  EXPECT_EQ(std::memcmp(read.calls.data(), &expected, sizeof expected), 0);
}

TEST(TraceFile, TicksBecomeTime) {
  TraceFile trace;
  trace.entered = {1000, 5'000'000'000};
  trace.now = {3000, 6'000'000'000};
  EXPECT_EQ(trace.unix_ns(1000), 5'000'000'000);
  EXPECT_EQ(trace.unix_ns(2000), 5'500'000'000);
  EXPECT_EQ(trace.unix_ns(3000), 6'000'000'000);
  trace.entered = {};
  EXPECT_EQ(trace.unix_ns(2000), 0);
}

TEST(TraceFile, BytesOfADyingRankAreNoReasonToFail) {
  TraceFile trace;
  CallRecord call;
  std::memset(call.op, 0xff, sizeof call.op);  // neither UTF-8 nor ended
  trace.calls = {call};
  const TraceFile read = parse_trace(format_trace(trace), "x");
  EXPECT_EQ(read.calls.size(), 1u);
}

TEST(TraceFile, SaysWhatIsWrongWithAFile) {
  TraceFile trace;
  trace.calls = {full_record()};
  const std::string text = format_trace(trace);
  const auto error = [](const std::string& broken) {
    return message_of<DataError>([&] { parse_trace(broken, "a/rank0.json"); });
  };
  const auto replaced = [&](const std::string& what, const std::string& with) {
    std::string result = text;
    result.replace(result.find(what), what.size(), with);
    return result;
  };
  for (size_t size : {size_t{0}, size_t{1}, text.size() / 2, text.size() - 3})
    EXPECT_THAT(error(text.substr(0, size)), HasSubstr("a/rank0.json: not JSON, or cut off"))
        << size;
  EXPECT_THAT(error("[]"), HasSubstr("a/rank0.json: not as expected"));
  EXPECT_THAT(error(replaced("\"version\":1", "\"version\":2")),
              HasSubstr("version 2 is not known"));
  EXPECT_THAT(error(replaced("\"rank\":0", "\"rank\":1")), HasSubstr("rank 1 of 1 cannot be"));
  EXPECT_THAT(error(replaced("\"pid\":0", "\"pid\":\"x\"")), HasSubstr("not as expected"));
  EXPECT_THAT(error(replaced("0xfedc", "0xfedg")), HasSubstr("fingerprint"));
}

TEST(TraceFile, WhatIsNoOrdinaryFileIsNotWaitedFor) {
  const TestDirectory folder;
  ASSERT_EQ(::mkfifo((folder / "rank0.json").c_str(), 0600), 0);
  for (const auto& read : {std::function([&] { read_trace(folder / "rank0.json"); }),
                           std::function([&] { read_traces(folder.path()); })})
    EXPECT_THAT(message_of<DataError>(read), HasSubstr("rank0.json: it is no ordinary file"));
}

TEST(TraceFile, AFolderIsReadByRank) {
  const TestDirectory folder;
  EXPECT_THAT(message_of<DataError>([&] { read_traces(folder.path()); }),
              HasSubstr("has no rank*.json"));
  EXPECT_THAT(message_of<DataError>([&] { read_traces(folder / "none"); }),
              HasSubstr("cannot be read"));
  for (const int rank : {10, 2, 0}) {
    TraceFile trace;
    trace.rank = rank;
    trace.world_size = 11;
    write_trace(folder.path(), trace);
  }
  std::ofstream(folder / "ranks.json") << "something else";
  const std::vector<TraceFile> traces = read_traces(folder.path());
  ASSERT_EQ(traces.size(), 3u);
  EXPECT_EQ(traces[1].rank, 2);
  EXPECT_EQ(traces[2].rank, 10);
  std::filesystem::copy(folder / "rank2.json", folder / "rank3.json");
  EXPECT_THAT(message_of<DataError>([&] { read_traces(folder.path()); }),
              HasSubstr("it is of rank 2"));
}

}  // namespace trace_file_test
}  // namespace lockstep::inline v0::trace
