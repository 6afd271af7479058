#include "lockstep/report/run_result.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::run_result_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

const char* const kWhole = R"({"method": "distributed", "nproc": 2, "model": "mini",
  "dtype": "float32", "padding": "max_length", "steps": 3, "epochs": 1, "samples": 192,
  "batch_size": 32, "seconds": 6.0, "minutes": 0.1, "samples_per_s": 32.0, "startup_s": 0.25,
  "losses": [1.8, 1.75, 1.5], "evaluations": [{"step": 3, "loss": 1.4, "accuracy": 0.5}],
  "dev_loss": 1.4, "dev_accuracy": 0.5, "macro_f1": 0.4, "weighted_f1": 0.45,
  "labels": ["其他", "喜好"], "confusion": [[3, 1], [2, 2]], "peak_memory_mib": [500.5, 510],
  "parts_s": {"data": 0.1, "forward": 2, "backward": 3, "wait": 0.4, "optimizer": 0.5},
  "checkpoint": "runs/a/checkpoints/last"})";

TEST(RunResult, ComesBackAsItWasWritten) {
  const RunResult result = parse_run_result(kWhole, "result.json");
  EXPECT_EQ(result.method, "distributed");
  EXPECT_THAT(result.losses, ElementsAre(1.8, 1.75, 1.5));
  EXPECT_EQ(result.confusion->at(1, 0), 2);
  EXPECT_DOUBLE_EQ((*result.parts_s)[3], 0.4);
  EXPECT_EQ(Json(to_json(result)), Json::parse(kWhole));
}

TEST(RunResult, WhatIsNotKnownMayBeAbsentOrNull) {
  const RunResult result = parse_run_result(
      R"({"method": "x", "nproc": 1, "steps": 2, "samples": 64, "seconds": 1,
          "samples_per_s": 64, "losses": [null, 1], "dev_accuracy": null, "news": {"a": []}})",
      "r");
  EXPECT_TRUE(std::isnan(result.losses[0]));
  EXPECT_FALSE(result.dev_accuracy || result.confusion || result.parts_s || result.startup_s);
  EXPECT_TRUE(to_json(result)["losses"].dump() == "[null,1.0]");
}

// One change of a whole result, and the expected line.
TEST(RunResult, WhatIsWrongIsNamedInOneLine) {
  const auto says = [](const char* pointer, const Json& value) {
    Json json = Json::parse(kWhole);
    json[Json::json_pointer(pointer)] = value;
    const std::string line =
        message_of<DataError>([&] { parse_run_result(json.dump(), "r.json"); });
    EXPECT_EQ(line.find('\n'), std::string::npos);
    EXPECT_THAT(line, HasSubstr("r.json"));
    return line;
  };
  EXPECT_THAT(says("/method", nullptr), HasSubstr("r.json: method is missing; give a text"));
  EXPECT_THAT(says("/method", 3), HasSubstr("method is 3; give a text"));
  EXPECT_THAT(says("/steps", -1), HasSubstr("steps is -1; give a whole number, 0 or more"));
  EXPECT_THAT(says("/steps", 1.5), HasSubstr("steps is 1.5"));
  EXPECT_THAT(says("/nproc", 0), HasSubstr("whole number, 1 or more"));
  EXPECT_THAT(says("/samples", 18446744073709551615u), HasSubstr("samples is"));
  EXPECT_THAT(says("/seconds", "long"),
              HasSubstr("seconds is \"long\"; give a number, 0.0 or more"));
  EXPECT_THAT(says("/seconds", 1e300), HasSubstr("seconds is"));
  EXPECT_THAT(says("/dev_accuracy", 55.25), HasSubstr("a number from 0.0 to 1.0"));
  EXPECT_THAT(says("/losses", nullptr), HasSubstr("losses is missing"));
  EXPECT_THAT(says("/losses", Json::object()), HasSubstr("losses is {}; give a list"));
  EXPECT_THAT(says("/losses/1", "x"), HasSubstr("losses is \"x\""));
  EXPECT_THAT(says("/labels", Json::array({"a"})), HasSubstr("a row for each of the 1 labels"));
  EXPECT_THAT(says("/labels/0", 7), HasSubstr("a text for each class"));
  EXPECT_THAT(says("/confusion/1", Json::array({1})), HasSubstr("rows of 2 counts"));
  EXPECT_THAT(says("/confusion/0/1", -4), HasSubstr("confusion is -4"));
  EXPECT_THAT(says("/parts_s/wait", "?"), HasSubstr("parts_s.wait is"));
  EXPECT_THAT(says("/parts_s", 3), HasSubstr("parts_s is 3; give a JSON object"));
  EXPECT_THAT(says("/evaluations/0/accuracy", nullptr),
              HasSubstr("evaluations.accuracy is missing"));
}

TEST(RunResult, HostileFilesAreRefusedInOneLine) {
  const std::string deep = std::string(200000, '[') + std::string(200000, ']');
  std::string nested = kWhole;
  nested.replace(nested.find("[1.8"), 4, deep + ", [1.8");
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("\"x\""),
        std::string("{\"method\": \"\xff\"}"), std::string(1000, '{'), deep,
        R"({"method": "x", "losses": )" + deep + "}", std::string("\0\0", 2)}) {
    const std::string line = message_of<DataError>([&] { parse_run_result(text, "r.json"); });
    EXPECT_THAT(line, HasSubstr("r.json")) << text.substr(0, 30);
    EXPECT_EQ(line.find('\n'), std::string::npos);
    EXPECT_LT(line.size(), 400u);
  }
}

}  // namespace lockstep::inline v0::run_result_test
