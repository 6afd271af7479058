/* Samples, a small network and a job for the checks of models in C. */
#ifndef LOCKSTEP_C_MODEL_HELPERS_TEST_H
#define LOCKSTEP_C_MODEL_HELPERS_TEST_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "lockstep/c/checks_test.h"
#include "lockstep/c/lockstep.h"

enum { kInputs = 3, kOutputs = 2, kRows = 12 };

/* Samples that every rank can make: row i of step s. */
static inline void make_row(int step, int i, double* input, double* target) {
  for (int j = 0; j < kInputs; ++j) input[j] = sin(1.0 + step * 0.37 + i * 1.7 + j * 0.9);
  for (int j = 0; j < kOutputs; ++j) target[j] = cos(input[0] + j) * input[1] - 0.5 * input[2];
}

typedef struct {
  double input[kRows * kInputs], target[kRows * kOutputs];
  int64_t input_shape[2], target_shape[2];
  lockstep_array inputs, targets;
} batch;

/* Rows [begin, end) of the step. */
static inline void fill(batch* b, int step, int begin, int end) {
  for (int i = begin; i < end; ++i)
    make_row(step, i, b->input + (i - begin) * kInputs, b->target + (i - begin) * kOutputs);
  b->input_shape[0] = b->target_shape[0] = end - begin;
  b->input_shape[1] = kInputs;
  b->target_shape[1] = kOutputs;
  const lockstep_array in = {
      .data = b->input, .shape = b->input_shape, .ndim = 2, .dtype = LOCKSTEP_FLOAT64};
  const lockstep_array wanted = {
      .data = b->target, .shape = b->target_shape, .ndim = 2, .dtype = LOCKSTEP_FLOAT64};
  b->inputs = in;
  b->targets = wanted;
}

/* The rows of a step that are rank `rank`'s: unequal parts, some of them empty. */
static inline void fill_part(batch* b, int step, int rank, int size) {
  int begin = kRows * rank / size, end = kRows * (rank + 1) / size;
  if (step % 3 == 1) { /* rank 0 has all */
    begin = rank == 0 ? 0 : kRows;
    end = kRows;
  } else if (step % 3 == 2) { /* the last rank has all */
    begin = 0;
    end = rank == size - 1 ? kRows : 0;
  } else if (size > 1 && rank < 2) { /* 3 rows less for rank 0 */
    if (rank == 0) end -= 3;
    if (rank == 1) begin -= 3;
  }
  fill(b, step, begin, end);
}

static inline lockstep_status make_net(uint64_t seed, lockstep_model** model) {
  static const int64_t sizes[3] = {kInputs, 8, kOutputs};
  lockstep_mlp_options options = LOCKSTEP_MLP_OPTIONS;
  options.sizes = sizes;
  options.count = 3;
  options.dtype = LOCKSTEP_FLOAT64;
  options.seed = seed;
  return lockstep_model_mlp(&options, model);
}

static inline double difference(lockstep_model* a, lockstep_model* b) {
  double most = 0;
  int32_t count = 0;
  if (lockstep_model_parameter_count(a, &count) != LOCKSTEP_OK || count != 4) return INFINITY;
  for (int32_t i = 0; i < count; ++i) {
    lockstep_array x, y;
    const char *name = NULL, *other = NULL;
    if (lockstep_model_parameter(a, i, &name, &x) != LOCKSTEP_OK) return INFINITY;
    if (lockstep_model_parameter(b, i, &other, &y) != LOCKSTEP_OK) return INFINITY;
    if (strcmp(name, other) != 0 || x.ndim != y.ndim) return INFINITY;
    int64_t n = 1;
    for (int32_t d = 0; d < x.ndim; ++d) n *= x.shape[d];
    for (int64_t k = 0; k < n; ++k) {
      const double apart = fabs(((double*)x.data)[k] - ((double*)y.data)[k]);
      if (!(apart <= most)) most = apart;
    }
  }
  return most;
}

static inline int join_job(lockstep_comm** comm, lockstep_comm** alone, int32_t* rank,
                           int32_t* size) {
  CHECK_OK(lockstep_init(NULL, comm));
  CHECK_OK(lockstep_comm_rank(*comm, rank));
  CHECK_OK(lockstep_comm_size(*comm, size));
  CHECK_OK(lockstep_comm_split(*comm, *rank, 0, alone));
  return 0;
}

#endif /* LOCKSTEP_C_MODEL_HELPERS_TEST_H */
