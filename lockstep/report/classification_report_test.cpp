#include "lockstep/report/classification_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::classification_report_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// scikit-learn's output for y_true = 0 0 1 1 2 2 2, y_pred = 0 1 1 1 0 2 2.
constexpr const char* kAsScikitLearn =
    "              precision    recall  f1-score   support\n"
    "\n"
    "         cat       0.50      0.50      0.50         2\n"
    "         dog       0.67      1.00      0.80         2\n"
    "        bird       1.00      0.67      0.80         3\n"
    "\n"
    "    accuracy                           0.71         7\n"
    "   macro avg       0.72      0.72      0.70         7\n"
    "weighted avg       0.76      0.71      0.71         7\n";

ConfusionMatrix animals() {
  ConfusionMatrix matrix({"cat", "dog", "bird"});
  const int truth[] = {0, 0, 1, 1, 2, 2, 2}, predicted[] = {0, 1, 1, 1, 0, 2, 2};
  for (int i = 0; i < 7; ++i) matrix.add(truth[i], predicted[i]);
  return matrix;
}

const std::vector<int64_t> kEmotions{359, 51, 14,  122, 0,  0,  26, 156, 10, 20, 2,  10,
                                     56,  17, 118, 10,  12, 15, 43, 32,  34, 92, 15, 24,
                                     27,  33, 15,  0,   40, 9,  46, 30,  10, 1,  3,  148};

TEST(ClassificationReport, PrintsWhatScikitLearnPrints) {
  EXPECT_THAT(animals().counts(), ElementsAre(1, 1, 0, 0, 2, 0, 1, 0, 2));
  EXPECT_EQ(to_text(classification_report(animals())), kAsScikitLearn);
}

TEST(ClassificationReport, HasScikitLearnsFields) {
  const auto json = to_json(classification_report(animals()));
  EXPECT_EQ(json.size(), 6u);
  EXPECT_DOUBLE_EQ(json["accuracy"].get<double>(), 5.0 / 7);
  EXPECT_DOUBLE_EQ(json["dog"]["f1-score"].get<double>(), 0.8);
  EXPECT_EQ(json["bird"]["support"], 3);
  EXPECT_DOUBLE_EQ(json["macro avg"]["recall"].get<double>(), (0.5 + 1 + 2.0 / 3) / 3);
  EXPECT_DOUBLE_EQ(json["weighted avg"]["recall"].get<double>(), 5.0 / 7);
}

TEST(ClassificationReport, ZeroDivisionTakesTheValueGiven) {
  const ConfusionMatrix matrix({"a", "b", "c"}, {2, 0, 0, 1, 0, 0, 0, 0, 0});
  const auto as = [&](double value) { return classification_report(matrix, value); };
  EXPECT_EQ(as(0).classes[1].precision, 0);
  EXPECT_EQ(as(1).classes[1].precision, 1);
  EXPECT_EQ(as(1).classes[2].f1, 1);
  const auto nan = as(std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(std::isnan(nan.classes[2].recall));
  EXPECT_DOUBLE_EQ(nan.macro.recall, 0.5);  // of a and b
  EXPECT_THAT(to_text(nan), HasSubstr("c        nan       nan       nan         0\n"));
  EXPECT_TRUE(nlohmann::json::parse(to_json(nan).dump())["c"]["recall"].is_null());
}

// Tutorial 003's first report, to the letter; the counts are chosen to give its figures.
TEST(ClassificationReport, ChineseLabelsStandAsScikitLearnPutsThem) {
  const ConfusionMatrix matrix({"其他", "喜好", "悲伤", "厌恶", "愤怒", "高兴"}, kEmotions);
  EXPECT_EQ(to_text(classification_report(matrix)),
            "              precision    recall  f1-score   support\n"
            "\n"
            "          其他       0.64      0.66      0.65       546\n"
            "          喜好       0.49      0.70      0.57       224\n"
            "          悲伤       0.59      0.52      0.55       228\n"
            "          厌恶       0.38      0.38      0.38       240\n"
            "          愤怒       0.56      0.32      0.41       124\n"
            "          高兴       0.72      0.62      0.67       238\n"
            "\n"
            "    accuracy                           0.57      1600\n"
            "   macro avg       0.56      0.53      0.54      1600\n"
            "weighted avg       0.58      0.57      0.57      1600\n");
}

TEST(ConfusionMatrix, ATableOfChineseLabelsStandsStraight) {
  const ConfusionMatrix matrix({"其他", "喜好的很长很长的名字", "sad"},
                               {3, 1, 0, 0, 2, 0, 1, 1, 9});
  EXPECT_EQ(to_text(matrix),
            "true \\ predicted      其他  喜好的很长很长的名字  sad\n"
            "--------------------  ----  --------------------  ---\n"
            "其他                     3                     1    0\n"
            "喜好的很长很长的名字     0                     2    0\n"
            "sad                      1                     1    9\n");
}

TEST(ClassificationReport, NamesWhatIsWrong) {
  EXPECT_THROW(ConfusionMatrix({}), InvalidArgument);
  EXPECT_THAT(message_of<InvalidArgument>([] { ConfusionMatrix({"a", "b"}, {1, 2, 3}); }),
              HasSubstr("3 counts for 2 labels"));
  EXPECT_THAT(message_of<InvalidArgument>([] { ConfusionMatrix({"a", "b"}, {1, -2, 3, 4}); }),
              HasSubstr("-2 samples of class 'a' predicted as 'b'"));
  ConfusionMatrix matrix({"a", "b"});
  EXPECT_THAT(message_of<InvalidArgument>([&] { matrix.add(0, 2); }), HasSubstr("class 2 of 2"));
  EXPECT_THROW(matrix.add(-1, 0), InvalidArgument);
  EXPECT_THROW(to_text(classification_report(matrix), -1), InvalidArgument);
}

}  // namespace lockstep::inline v0::classification_report_test
