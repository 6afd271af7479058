// The real TensorBoard reads the files, if a Python here has it.
#include <gtest/gtest.h>
#include <stdio.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "lockstep/core/internal/test_support.h"
#include "lockstep/report/tensorboard.h"

namespace lockstep::inline v0::tensorboard_test {
namespace {

struct Ran {
  int status = -1;
  std::string output;
};

Ran run(const std::string& line) {
  Ran ran;
  FILE* pipe = ::popen((line + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return ran;
  char part[4096];
  while (const size_t n = ::fread(part, 1, sizeof part, pipe)) ran.output.append(part, n);
  ran.status = ::pclose(pipe);
  return ran;
}

// A Python with the package, or "".
std::string python_with_tensorboard() {
  const char* named = std::getenv("LOCKSTEP_TEST_PYTHON");
  for (const std::string& python :
       {std::string(named == nullptr ? "" : named),
        std::string(LOCKSTEP_SOURCE_DIR "/.venv/bin/python3"), std::string("python3")}) {
    if (python.empty()) continue;
    const std::string import =
        " -c 'import tensorboard.backend.event_processing.event_accumulator'";
    if (run("'" + python + "'" + import).status == 0) return python;
  }
  return {};
}

constexpr const char* kNoTensorBoard =
    "no Python has TensorBoard: pip install --no-deps tensorboard protobuf absl-py numpy";

// The contents of EventAccumulator after it has read all files of the directory.
constexpr const char* kReader = R"(
import json, sys, warnings
warnings.simplefilter("ignore")
from tensorboard.backend.event_processing import event_accumulator as ea
from tensorboard.backend.event_processing import plugin_event_accumulator as pea
a = ea.EventAccumulator(sys.argv[1], size_guidance={k: 0 for k in ea.DEFAULT_SIZE_GUIDANCE})
a.Reload()
# data_compat turns each kind into the tensors that today's TensorBoard shows.
p = pea.EventAccumulator(sys.argv[1], tensor_size_guidance={})
p.Reload()
tags = a.Tags()
print(json.dumps({
    "version": a.file_version,
    "scalars": {t: [[e.step, e.value if e.value == e.value else "nan"] for e in a.Scalars(t)] for t in tags["scalars"]},
    "histograms": {t: [[e.step, h.min, h.max, h.num, h.sum, h.sum_squares, list(h.bucket_limit), list(h.bucket)]
                       for e in a.Histograms(t) for h in [e.histogram_value]] for t in tags["histograms"]},
    "images": {t: [[e.step, e.width, e.height, len(e.encoded_image_string)] for e in a.Images(t)]
               for t in tags["images"]},
    "texts": {t: [[e.step, e.tensor_proto.string_val[0].decode()] for e in a.Tensors(t)] for t in tags["tensors"]},
    "plugins": {n: sorted(p.PluginTagToContent(n)) for n in ("scalars", "histograms", "images", "text")
                if n in p.ActivePlugins()},
}))
)";

nlohmann::json read_by_tensorboard(const std::string& python, const TestDirectory& dir) {
  const TestDirectory scripts;
  const auto script = scripts.write("reader.py", kReader);
  const Ran ran = run("'" + python + "' '" + script.string() + "' '" + dir.path().string() + "'");
  EXPECT_EQ(ran.status, 0) << ran.output;
  const size_t begin = ran.output.find("{\"version\"");
  if (begin == std::string::npos) {
    ADD_FAILURE() << ran.output;
    return {};
  }
  return nlohmann::json::parse(ran.output.substr(begin));
}

TEST(TensorBoard, TheRealOneReadsEverything) {
  const std::string python = python_with_tensorboard();
  if (python.empty()) GTEST_SKIP() << kNoTensorBoard;
  const TestDirectory dir;
  {
    TensorBoardWriter writer(dir.path());
    for (int step = 0; step < 100; ++step) writer.add_scalar("loss/train", 1.0 / (1 + step), step);
    writer.add_scalar("loss/test", std::numeric_limits<double>::quiet_NaN(), int64_t{1} << 40);
    const std::vector<float> weights = {-1, -1, 0, 0.5f, 2, std::numeric_limits<float>::infinity()};
    writer.add_histogram("weights", weights, 7);
    writer.add_histogram("nothing", std::vector<double>(), 7);
    writer.add_text("config", "**lr** 0.1, 学习率", 0);
    writer.add_image("digit", std::vector<uint8_t>(28 * 14, 200), 28, 14, 1, 3);
  }
  const auto got = read_by_tensorboard(python, dir);
  EXPECT_EQ(got["version"], 2);
  ASSERT_EQ(got["scalars"]["loss/train"].size(), 100u);
  EXPECT_EQ(got["scalars"]["loss/train"][3], nlohmann::json({3, 0.25}));
  EXPECT_EQ(got["scalars"]["loss/test"][0], nlohmann::json({int64_t{1} << 40, "nan"}));
  const auto& histogram =
      got["histograms"]["weights"][0];  // step, min, max, num, sum, squares, ...
  EXPECT_EQ(histogram[0], 7);
  EXPECT_EQ(histogram[1], -1);
  EXPECT_EQ(histogram[2], 2);
  EXPECT_EQ(histogram[3], 5);
  EXPECT_EQ(histogram[4], 0.5);
  EXPECT_EQ(histogram[5], 6.25);
  const auto limits = histogram[6].get<std::vector<double>>();
  const auto counts = histogram[7].get<std::vector<double>>();
  ASSERT_EQ(limits.size(), counts.size());
  double below_zero = 0, all = 0;
  for (size_t i = 0; i < limits.size(); ++i) {
    if (i > 0) {
      EXPECT_LT(limits[i - 1], limits[i]);
    }
    all += counts[i];
    if (limits[i] <= 0) below_zero += counts[i];
    // Every value lies in its bucket, whose width is a tenth.
    if (counts[i] == 0) continue;
    bool has = false;
    for (const double v : {-1.0, 0.0, 0.5, 2.0}) has = has || (limits[i - 1] <= v && v < limits[i]);
    EXPECT_TRUE(has) << limits[i];
  }
  EXPECT_EQ(all, 5);
  EXPECT_EQ(below_zero, 2);
  EXPECT_EQ(got["histograms"]["nothing"][0][3], 0);
  EXPECT_EQ(got["texts"]["config"][0], nlohmann::json({0, "**lr** 0.1, 学习率"}));
  EXPECT_EQ(got["images"]["digit"][0][1], 14);
  EXPECT_EQ(got["images"]["digit"][0][2], 28);
  EXPECT_EQ(got["plugins"]["scalars"], nlohmann::json({"loss/test", "loss/train"}));
  EXPECT_EQ(got["plugins"]["histograms"], nlohmann::json({"nothing", "weights"}));
  EXPECT_EQ(got["plugins"]["images"], nlohmann::json({"digit"}));
  EXPECT_EQ(got["plugins"]["text"], nlohmann::json({"config"}));
}

TEST(TensorBoard, AResumedRunReplacesWhatCameAfterItsCheckpoint) {
  const std::string python = python_with_tensorboard();
  if (python.empty()) GTEST_SKIP() << kNoTensorBoard;
  const TestDirectory dir;
  {
    TensorBoardWriter first(dir.path());
    for (int step = 1; step <= 6; ++step) first.add_scalar("loss", step, step);
  }
  // Files are read in the order of their names, which begin with the second.
  {
    TensorBoardWriter second(dir.path(), {.resumed_at = 4});
    for (int step = 4; step <= 7; ++step) second.add_scalar("loss", 10 * step, step);
  }
  const auto got = read_by_tensorboard(python, dir);
  EXPECT_EQ(got["scalars"]["loss"],
            nlohmann::json::parse("[[1,1],[2,2],[3,3],[4,40],[5,50],[6,60],[7,70]]"));
}

}  // namespace
}  // namespace lockstep::inline v0::tensorboard_test
