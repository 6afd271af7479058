#include "lockstep/bench/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "lockstep/bench/comparison_page.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::bench::comparison_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::ordered_json;

RunResult run(const std::string& method, int64_t nproc, double seconds) {
  return {.method = method,
          .nproc = nproc,
          .model = "mini",
          .dtype = "float32",
          .padding = "longest",
          .steps = 288 / nproc,
          .epochs = 1,
          .samples = 9200,
          .batch_size = 32,
          .seconds = seconds,
          .samples_per_s = 9200 / seconds,
          .startup_s = 0.5,
          .losses = {1.75, 1.5, std::numeric_limits<double>::quiet_NaN(), 1.25, 1, 0.5},
          .evaluations = {},
          .dev_loss = 1.25,
          .dev_accuracy = 0.5525,
          .macro_f1 = 0.5,
          .weighted_f1 = 0.5,
          .confusion = ConfusionMatrix({"其他", "喜好"}, {5, 1, 2, 6}),
          .peak_memory_mib = {500, 520},
          .parts_s = {{0.5, 1, 2, 0.25, 0.5}},
          .checkpoint = "c"};
}

Comparison three() {
  Comparison comparison{.model = "mini",
                        .data = "emotion|zh",
                        .recipe = "",
                        .nproc = 2,
                        .threads_per_rank = 1,
                        .processors = 2,
                        .processor = "CPU <1>",
                        .date = "2025-01-02",
                        .methods = {},
                        .scaling = {}};
  comparison.methods = {{"single", "single-gpu-cls", run("single", 1, 120), ""},
                        {"distributed", "multi-gpu-distributed-cls", run("distributed", 2, 60), ""},
                        {"horovod", "multi-gpu-horovod-cls", std::nullopt, "exit code 3: <b>"}};
  comparison.scaling = {{"distributed", {run("distributed", 1, 118), run("distributed", 2, 59)}}};
  return comparison;
}

TEST(Comparison, SpeedIsThatOfSamplesOverSingle) {
  Comparison comparison = three();
  EXPECT_DOUBLE_EQ(*speedup(comparison, *comparison.methods[1].result), 2);
  EXPECT_EQ(find_result(comparison, "horovod"), nullptr);
  comparison.methods.erase(comparison.methods.begin());
  EXPECT_FALSE(speedup(comparison, *comparison.methods[0].result));
}

TEST(Comparison, TheTableHasARowAMethod) {
  EXPECT_EQ(
      comparison_table(three()),
      "method       seconds  speed-up  samples/s  steps  MiB a rank  dev accuracy  macro F1\n"
      "-----------  -------  --------  ---------  -----  ----------  ------------  --------\n"
      "single         120.0      1.00       76.7    288         520        0.5525    0.5000\n"
      "distributed     60.0      2.00      153.3    144         520        0.5525    0.5000\n"
      "horovod       failed         -          -      -           -             -         -\n");
}

TEST(Comparison, JsonHasTheFields) {
  const Json json = to_json(three());
  const Json& distributed = json["methods"][1];
  EXPECT_EQ(distributed["method"], "distributed");
  EXPECT_EQ(distributed["tutorial"], "multi-gpu-distributed-cls");
  EXPECT_EQ(distributed["minutes"], 1.0);
  EXPECT_EQ(distributed["speedup"], 2.0);
  EXPECT_EQ(distributed["steps"], 144);
  EXPECT_EQ(distributed["peak_memory_mib"], 520.0);
  EXPECT_EQ(distributed["dev_accuracy"], 0.5525);
  EXPECT_EQ(distributed["first_losses"].dump(), "[1.75,1.5,null,1.25,1.0]");
  EXPECT_EQ(distributed["parts_s"]["wait"], 0.25);
  EXPECT_EQ(json["methods"][2]["failure"], "exit code 3: <b>");
  EXPECT_EQ(json["scaling"][0]["runs"][1]["efficiency"], 1.0);
}

TEST(Comparison, MarkdownEscapesBars) {
  const std::string text = comparison_markdown(three());
  EXPECT_THAT(text, AllOf(HasSubstr("# 3 ways to train BERT\n"),
                          HasSubstr("| distributed | multi-gpu-distributed-cls | 60.0 | 2.00 |"),
                          HasSubstr("horovod failed: exit code 3"),
                          HasSubstr("Fastest: distributed, 153.3 samples/s, 2.00× single."),
                          HasSubstr("| single | 1.750000 1.500000 nan 1.250000 1.000000 |")));
}

// A sentence that the fastest method is as fast as itself would say nothing.
TEST(Comparison, TheFastestIsComparedWithAnother) {
  Comparison comparison = three();
  comparison.methods[0].result->samples_per_s = 500;
  EXPECT_THAT(comparison_markdown(comparison), HasSubstr("Fastest: single, 500.0 samples/s.\n"));
  EXPECT_THAT(comparison_page(comparison), HasSubstr("最快：single，每秒样本数 500.0。"));
}

TEST(Comparison, SaysWhereTimesDoNotCompare) {
  Comparison comparison = three();
  const std::string warning = "did not train on the same number of samples";
  EXPECT_THAT(comparison_markdown(comparison), Not(HasSubstr(warning)));
  comparison.methods[1].result->samples = 18400;
  EXPECT_THAT(comparison_markdown(comparison), HasSubstr(warning));
}

TEST(Comparison, ThePageHasPicturesInBothLanguages) {
  const std::string html = comparison_page(three());
  EXPECT_THAT(html, AllOf(HasSubstr("Where a step's time goes"), HasSubstr("一步的时间花在哪里")));
  EXPECT_THAT(html, AllOf(HasSubstr("训练 BERT 的 3 种方法"), HasSubstr("CPU &lt;1&gt;"),
                          HasSubstr("exit code 3: &lt;b&gt;"), HasSubstr("Time against ranks"),
                          HasSubstr("f1-score"), Not(HasSubstr("NaN"))));
}

TEST(Comparison, SaysWhatItWasEvaluatedOn) {
  Comparison comparison = three();
  comparison.held_out = "test";
  EXPECT_THAT(comparison_table(comparison), HasSubstr("  test accuracy  "));
  EXPECT_THAT(comparison_markdown(comparison), HasSubstr("| test accuracy |"));
  EXPECT_THAT(
      comparison_page(comparison),
      AllOf(HasSubstr("test accuracy"), HasSubstr("测试集准确率"), HasSubstr("on the test set"),
            Not(HasSubstr("dev accuracy")), Not(HasSubstr("验证集"))));
  comparison.perplexity = true;
  comparison.methods[0].result->dev_loss = std::log(4.5);
  EXPECT_THAT(comparison_table(comparison),
              AllOf(HasSubstr("  test perplexity  "), HasSubstr("  4.500  "),
                    HasSubstr("  tokens/s  "), Not(HasSubstr("samples"))));
  comparison.subject = "language model";
  EXPECT_THAT(
      comparison_page(comparison),
      AllOf(HasSubstr("3 ways to train a language model"), HasSubstr("训练语言模型的 3 种方法"),
            HasSubstr("tokens trained on"), HasSubstr("已训练的 token 数"),
            Not(HasSubstr("samples")), Not(HasSubstr("样本"))));
}

TEST(Comparison, ShortRunsAreInSecondsInPicturesAndTables) {
  Comparison comparison = three();
  EXPECT_THAT(time_picture(comparison).en,
              AllOf(HasSubstr(">seconds<"), HasSubstr(">120.0 (1.00×)<")));
  EXPECT_THAT(time_picture(comparison).zh, HasSubstr(">秒<"));
  EXPECT_THAT(comparison_page(comparison),
              AllOf(HasSubstr(">seconds<"), HasSubstr(">秒<"), Not(HasSubstr("minutes"))));
  comparison.methods[0].result->seconds = 600;
  EXPECT_THAT(time_picture(comparison).en, AllOf(HasSubstr(">minutes<"), HasSubstr(">10.00 (")));
  EXPECT_THAT(comparison_table(comparison),
              AllOf(HasSubstr("  minutes  "), HasSubstr("single         10.00  ")));
  EXPECT_THAT(comparison_page(comparison), Not(HasSubstr("seconds<")));
}

TEST(Comparison, NothingButFailuresStillMakesAPage) {
  Comparison comparison = three();
  comparison.scaling.clear();
  for (ComparedMethod& method : comparison.methods) method.result.reset();
  EXPECT_THAT(comparison_page(comparison),
              AllOf(HasSubstr("No method has a result."), Not(HasSubstr("<svg"))));
  EXPECT_THAT(comparison_markdown(comparison), HasSubstr("single failed"));
}

// Steps without losses, no time, no parts: figures are unknown, pictures are empty, and nothing is
// NaN.
TEST(Comparison, EmptyRunsDraw) {
  Comparison comparison = three();
  comparison.methods[1].result = RunResult();
  EXPECT_THAT(comparison_page(comparison),
              AllOf(Not(HasSubstr("nan,")), Not(HasSubstr(",nan")), Not(HasSubstr("inf"))));
}

}  // namespace lockstep::inline v0::bench::comparison_test
