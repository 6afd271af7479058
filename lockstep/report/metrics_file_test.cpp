#include "lockstep/report/metrics_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::metrics_file_test {

using ::testing::HasSubstr;

TEST(MetricsFile, DamagedFilesAreNamed) {
  const TestDirectory dir;
  dir.write("m.jsonl", "{\"step\":1}\n\n{\"step\":2,\"type\":\"train\"}\n");
  EXPECT_EQ(read_metrics(dir / "m.jsonl").size(), 2u);
  for (const char* bad :
       {"{\"step\":1}\n{\"st", "{}\n[]\n", "{}\n{\"step\":\"x\"}\n", "{}\n{\"type\":1}"}) {
    dir.write("m.jsonl", bad);
    EXPECT_THAT(message_of<DataError>([&] { read_metrics(dir / "m.jsonl"); }),
                HasSubstr("m.jsonl:2: is no JSON object"));
  }
  EXPECT_THROW(read_metrics(dir / "none"), DataError);
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(message_of<DataError>([&] { read_metrics(dir / "pipe"); }),
              HasSubstr("pipe: it is no ordinary file"));
}

TEST(MetricsFile, AStallIsTheMedianOfALogs) {
  const TestDirectory dir;
  dir.write("metrics.jsonl",
            R"({"step":1,"loss":2.5}
{"step":2,"loss":2.5,"checkpoint_s":0.5}
{"step":3,"loss":2.5,"checkpoint_s":9}
{"step":4,"loss":2.5,"checkpoint_s":0.25}
)");
  EXPECT_EQ(checkpoint_stall_of(dir.path()), 0.5);
  EXPECT_EQ(checkpoint_stall_of(dir / "metrics.jsonl"), 0.5);
  dir.write("two.jsonl", "{\"checkpoint_s\":1}\n{\"checkpoint_s\":2}\n");
  EXPECT_EQ(checkpoint_stall_of(dir / "two.jsonl"), 1.5);
  for (const char* bad : {"\"long\"", "-1", "null"}) {
    dir.write("bad.jsonl", std::string("{\"checkpoint_s\":") + bad + "}\n");
    EXPECT_THAT(message_of<DataError>([&] { checkpoint_stall_of(dir / "bad.jsonl"); }),
                HasSubstr("bad.jsonl: has a checkpoint_s that is no time"));
  }
  dir.write("none.jsonl", "{\"step\":1}\n");
  EXPECT_THAT(message_of<DataError>([&] { checkpoint_stall_of(dir / "none.jsonl"); }),
              HasSubstr("none.jsonl: no log has checkpoint_s; train with checkpoints between"));
  EXPECT_THROW(checkpoint_stall_of(dir / "missing"), DataError);
}

}  // namespace lockstep::inline v0::metrics_file_test
