// The quality of a classifier, class by class: the confusion matrix, and the report that
// scikit-learn's sklearn.metrics.classification_report makes of it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// Counts how often each true class was given each predicted class. Counts of several ranks can be
// added: sum counts() over the ranks and make one matrix of the result.
class LOCKSTEP_API ConfusionMatrix {
 public:
  // Starts with all counts zero.
  // Throws: InvalidArgument without labels.
  explicit ConfusionMatrix(std::vector<std::string> labels);
  // `counts` stand row by row, one row per true class: labels.size() squared values, none negative.
  // Throws: InvalidArgument.
  ConfusionMatrix(std::vector<std::string> labels, std::vector<int64_t> counts);

  // Adds one sample.
  // Throws: InvalidArgument for a class that does not exist.
  void add(int64_t truth, int64_t predicted);

  const std::vector<std::string>& labels() const { return labels_; }  // the classes' names
  const std::vector<int64_t>& counts() const { return counts_; }      // row by row
  size_t classes() const { return labels_.size(); }                   // their number
  // Samples of class `truth` that were taken for class `predicted`.
  int64_t at(size_t truth, size_t predicted) const {
    return counts_[truth * classes() + predicted];
  }
  int64_t total() const;    // all samples
  int64_t correct() const;  // those on the diagonal

 private:
  std::vector<std::string> labels_;
  std::vector<int64_t> counts_;
};

// The scores of a class, or their mean.
struct ClassScores {
  double precision = 0;
  double recall = 0;
  double f1 = 0;
  int64_t support = 0;  // samples whose true class is this one
};

// All scores of a classifier.
struct ClassificationReport {
  std::vector<std::string> labels;
  std::vector<ClassScores> classes;  // one per label
  double accuracy = 0;
  ClassScores macro;     // mean over classes
  ClassScores weighted;  // mean over classes, weighted by support
};

// `zero_division` (0, 1 or NaN) replaces a quotient whose divisor is 0, such as the precision of a
// class that was never predicted; means leave NaN out. The numbers equal scikit-learn's digit for
// digit.
LOCKSTEP_API ClassificationReport classification_report(const ConfusionMatrix& matrix,
                                                        double zero_division = 0);

// The text as scikit-learn prints it, byte for byte, with `digits` (0 or more) digits after the
// point. Like Python it counts characters, so columns behind wide characters (Chinese) are shifted.
LOCKSTEP_API std::string to_text(const ClassificationReport& report, int digits = 2);

// The fields of scikit-learn's output_dict: an object for each label, "accuracy", "macro avg" and
// "weighted avg", each with precision, recall, f1-score and support. NaN becomes null.
LOCKSTEP_API nlohmann::ordered_json to_json(const ClassificationReport& report);

// The counts as a table of text: one row per true class, one column per predicted class.
LOCKSTEP_API std::string to_text(const ConfusionMatrix& matrix);

}  // namespace lockstep::inline v0
