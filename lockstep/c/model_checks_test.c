#include <math.h>
#include <stdlib.h>

#include "lockstep/c/checks_test.h"
#include "lockstep/c/lockstep.h"
#include "lockstep/c/model_helpers_test.h"

/* Trains on all ranks, and at the same time on this one alone with all the rows: both are equal. */
static int train_both(lockstep_comm* comm, lockstep_comm* alone, int rank, int size,
                      const lockstep_training_options* options) {
  lockstep_model *together = NULL, *single = NULL;
  CHECK_OK(make_net((uint64_t)rank + 1, &together)); /* rank 0's values become all ranks' */
  CHECK_OK(make_net(1, &single));
  CHECK_OK(lockstep_model_start_training(together, comm, options));
  CHECK_OK(lockstep_model_start_training(single, alone, options));
  CHECK_THAT(difference(together, single) == 0);
  batch part, whole;
  double loss = 0, expected = 0, first = 0;
  for (int step = 0; step < 30; ++step) {
    fill_part(&part, step, rank, size);
    fill(&whole, step, 0, kRows);
    CHECK_OK(lockstep_model_train_step(together, &part.inputs, 1, &part.targets, 1, &loss));
    CHECK_OK(lockstep_model_train_step(single, &whole.inputs, 1, &whole.targets, 1, &expected));
    CHECK_THAT(fabs(loss - expected) < 1e-10);
    if (step == 0) first = loss;
    if (step == 20) {
      CHECK_OK(lockstep_model_set_learning_rate(together, options->learning_rate / 2));
      CHECK_OK(lockstep_model_set_learning_rate(single, options->learning_rate / 2));
    }
  }
  CHECK_THAT(difference(together, single) < 1e-10);
  CHECK_THAT(difference(together, single) >= 0);
  CHECK_THAT(loss < 0.7 * first);
  CHECK_OK(lockstep_model_evaluate(together, &part.inputs, 1, &part.targets, 1, &loss));
  CHECK_OK(lockstep_model_evaluate(single, &whole.inputs, 1, &whole.targets, 1, &expected));
  CHECK_THAT(fabs(loss - expected) < 1e-10);
  int64_t steps = 0;
  CHECK_OK(lockstep_model_steps(together, &steps));
  CHECK_THAT(steps == 30);
  CHECK_OK(lockstep_model_free(together));
  CHECK_OK(lockstep_model_free(single));
  return 0;
}

int check_training(void) {
  lockstep_comm *comm = NULL, *alone = NULL;
  int32_t rank = 0, size = 0;
  if (join_job(&comm, &alone, &rank, &size) != 0) return 1;
  const char* const optimizers[3] = {"sgd", "adam", "adamw"};
  for (int i = 0; i < 3; ++i) {
    lockstep_training_options options = LOCKSTEP_TRAINING_OPTIONS;
    options.loss = i == 1 ? "l1" : "mse";
    options.optimizer = optimizers[i];
    options.learning_rate = i == 0 ? 0.1 : 0.02;
    options.momentum = 0.9;
    options.nesterov = 1;
    options.weight_decay = 0.01;
    options.max_gradient_norm = i == 0 ? 0.5 : 0;
    if (train_both(comm, alone, rank, size, &options) != 0) return 1;
  }

  /* Without training: average, and broadcast. */
  lockstep_model *model = NULL, *other = NULL;
  CHECK_OK(make_net((uint64_t)rank, &model));
  CHECK_OK(make_net(0, &other));
  lockstep_array bias;
  const char* name = NULL;
  CHECK_OK(lockstep_model_parameter(model, 1, &name, &bias));
  CHECK_THAT(strcmp(name, "layers.0.bias") == 0 && bias.shape[0] == 8);
  ((double*)bias.data)[3] = rank;
  CHECK_OK(lockstep_model_average(model, comm));
  CHECK_THAT(2 * ((double*)bias.data)[3] == size - 1);
  CHECK_OK(lockstep_model_free(model));
  CHECK_OK(make_net((uint64_t)rank, &model));
  CHECK_OK(lockstep_model_broadcast(model, comm, 0));
  CHECK_THAT(difference(model, other) == 0);
  CHECK_OK(lockstep_model_free(model));
  CHECK_OK(lockstep_model_free(other));
  CHECK_OK(lockstep_comm_free(alone));
  CHECK_OK(lockstep_comm_free(comm));
  return 0;
}

static int squares(void* context, const lockstep_array* outputs, int32_t output_count,
                   const lockstep_array* targets, int32_t target_count, lockstep_array* gradients,
                   double* loss) {
  ++*(int*)context;
  if (output_count != 1 || target_count != 1 || outputs[0].shape[1] != kOutputs) return 5;
  const int64_t n = outputs[0].shape[0] * kOutputs;
  const double *y = outputs[0].data, *t = targets[0].data;
  double* g = gradients[0].data;
  *loss = 0;
  for (int64_t i = 0; i < n; ++i) {
    *loss += (y[i] - t[i]) * (y[i] - t[i]) / (double)n;
    g[i] = 2 * (y[i] - t[i]) / (double)n;
  }
  return *loss > 1e6 ? 7 : 0;
}

/* mse, written by the caller, trains as mse does. */
int check_loss_function(void) {
  lockstep_comm *comm = NULL, *alone = NULL;
  int32_t rank = 0, size = 0;
  if (join_job(&comm, &alone, &rank, &size) != 0) return 1;
  lockstep_model *model = NULL, *expected = NULL;
  CHECK_OK(make_net(1, &model));
  CHECK_OK(make_net(1, &expected));
  int calls = 0;
  lockstep_training_options options = LOCKSTEP_TRAINING_OPTIONS;
  options.loss = "mse";
  CHECK_OK(lockstep_model_start_training(expected, alone, &options));
  options.loss_function = squares;
  options.loss_context = &calls;
  CHECK_ERROR(lockstep_model_start_training(model, comm, &options), LOCKSTEP_INVALID_ARGUMENT,
              "either loss or loss_function");
  options.loss = NULL;
  CHECK_OK(lockstep_model_start_training(model, comm, &options));
  batch part, whole;
  double loss = 0, wanted = 0;
  int with_rows = 0;
  for (int step = 0; step < 9; ++step) {
    fill_part(&part, step, rank, size);
    fill(&whole, step, 0, kRows);
    with_rows += part.input_shape[0] > 0;
    CHECK_OK(lockstep_model_train_step(model, &part.inputs, 1, &part.targets, 1, &loss));
    CHECK_OK(lockstep_model_train_step(expected, &whole.inputs, 1, &whole.targets, 1, &wanted));
    CHECK_THAT(fabs(loss - wanted) < 1e-10);
  }
  CHECK_THAT(difference(model, expected) < 1e-10);
  CHECK_THAT(calls == with_rows);
  /* The function gives up on the last rank: it has the status, the others a text that names it. */
  fill(&part, 0, 0, 4);
  if (rank == size - 1) part.target[0] = 1e9;
  if (rank == size - 1)
    CHECK_ERROR(lockstep_model_train_step(model, &part.inputs, 1, &part.targets, 1, &loss),
                LOCKSTEP_CALLBACK_ERROR, "loss_function returned 7");
  else
    CHECK_ERROR(lockstep_model_train_step(model, &part.inputs, 1, &part.targets, 1, &loss),
                LOCKSTEP_MISMATCH, "could not compute its loss");
  CHECK_OK(lockstep_model_free(model));
  CHECK_OK(lockstep_model_free(expected));
  CHECK_OK(lockstep_comm_free(alone));
  CHECK_OK(lockstep_comm_free(comm));
  return 0;
}

/* A rank whose arrays do not fit the model: all ranks learn of it, and go on. */
int check_failed_forward(void) {
  lockstep_comm *comm = NULL, *alone = NULL;
  int32_t rank = 0, size = 0;
  if (join_job(&comm, &alone, &rank, &size) != 0) return 1;
  lockstep_model *model = NULL, *expected = NULL;
  CHECK_OK(make_net(1, &model));
  CHECK_OK(make_net(1, &expected));
  lockstep_training_options options = LOCKSTEP_TRAINING_OPTIONS;
  options.loss = "mse";
  CHECK_OK(lockstep_model_start_training(model, comm, &options));
  CHECK_OK(lockstep_model_start_training(expected, alone, &options));
  batch part, whole;
  for (int step = 0; step < 6; ++step) {
    fill_part(&part, step, rank, size);
    fill(&whole, step, 0, kRows);
    batch bad;
    fill(&bad, step, 0, 6);
    const lockstep_status mine = step % 2 == 0 ? LOCKSTEP_TORCH_ERROR : LOCKSTEP_INVALID_ARGUMENT;
    if (rank == 0 && step % 2 == 0) {
      bad.input_shape[0] = 9;
      bad.input_shape[1] = 2; /* the model takes 3 */
      bad.target_shape[0] = 9;
    } else if (rank == 0) {
      bad.inputs.dtype = 99;
    }
    const lockstep_status status =
        lockstep_model_train_step(model, &bad.inputs, 1, &bad.targets, 1, NULL);
    CHECK_THAT(status == (rank == 0 ? mine : LOCKSTEP_MISMATCH));
    CHECK_THAT(rank == 0 || strstr(lockstep_last_error(), "rank 0") != NULL);
    CHECK_OK(lockstep_model_train_step(model, &part.inputs, 1, &part.targets, 1, NULL));
    CHECK_OK(lockstep_model_train_step(expected, &whole.inputs, 1, &whole.targets, 1, NULL));
  }
  CHECK_THAT(difference(model, expected) < 1e-10);
  fill(&part, 0, 0, 0);
  CHECK_ERROR(lockstep_model_train_step(model, &part.inputs, 1, &part.targets, 1, NULL),
              LOCKSTEP_INVALID_ARGUMENT, "no rank has a row");
  CHECK_OK(lockstep_model_free(model));
  CHECK_OK(lockstep_model_free(expected));
  CHECK_OK(lockstep_comm_free(alone));
  CHECK_OK(lockstep_comm_free(comm));
  return 0;
}

int check_unlike_options(void) {
  lockstep_comm *comm = NULL, *alone = NULL;
  int32_t rank = 0, size = 0;
  if (join_job(&comm, &alone, &rank, &size) != 0) return 1;
  CHECK_THAT(size > 1);
  lockstep_model* model = NULL;
  CHECK_OK(make_net(1, &model));
  lockstep_training_options options = LOCKSTEP_TRAINING_OPTIONS;
  options.loss = "mse";
  options.beta2 = rank == 1 ? 0.99 : 0.999;
  CHECK_ERROR(lockstep_model_start_training(model, comm, &options), LOCKSTEP_MISMATCH,
              "ranks 0 and 1 start a training with different options: beta2");
  options.beta2 = 0.999;
  options.loss = rank == 0 ? "l1" : "mse";
  CHECK_ERROR(lockstep_model_start_training(model, comm, &options), LOCKSTEP_MISMATCH,
              "options: loss");
  options.loss = "mse";
  /* The last rank cannot start, and none waits for it. */
  const int last = rank == size - 1;
  char words[64];
  snprintf(words, sizeof words, "rank %d could not start", (int)size - 1);
  options.optimizer = last ? "lion" : "adam";
  CHECK_ERROR(lockstep_model_start_training(model, comm, &options),
              last ? LOCKSTEP_INVALID_ARGUMENT : LOCKSTEP_MISMATCH,
              last ? "no optimizer 'lion'" : words);
  options.optimizer = "adam";
  options.reserved = last;
  CHECK_ERROR(lockstep_model_start_training(model, comm, &options),
              last ? LOCKSTEP_INVALID_ARGUMENT : LOCKSTEP_MISMATCH, last ? "reserved is 1" : words);
  options.reserved = 0;
  CHECK_OK(lockstep_model_start_training(model, comm, &options));
  batch part;
  fill_part(&part, 0, rank, size);
  CHECK_OK(lockstep_model_train_step(model, &part.inputs, 1, &part.targets, 1, NULL));
  CHECK_OK(lockstep_model_set_learning_rate(model, last ? 0.5 : 0.25));
  CHECK_ERROR(lockstep_model_train_step(model, &part.inputs, 1, &part.targets, 1, NULL),
              LOCKSTEP_MISMATCH, "the learning rate is 0.25 on rank 0 and 0.5");
  int64_t steps = 0;
  CHECK_OK(lockstep_model_steps(model, &steps));
  CHECK_THAT(steps == 1);
  CHECK_OK(lockstep_model_set_learning_rate(model, 0.25));
  CHECK_OK(lockstep_model_train_step(model, &part.inputs, 1, &part.targets, 1, NULL));
  CHECK_OK(lockstep_model_free(model));
  CHECK_OK(lockstep_comm_free(alone));
  CHECK_OK(lockstep_comm_free(comm));
  return 0;
}

int check_checkpoint(const char* folder) {
  lockstep_comm *comm = NULL, *alone = NULL;
  int32_t rank = 0, size = 0;
  if (join_job(&comm, &alone, &rank, &size) != 0) return 1;
  char checkpoint[512], script[512], missing[512];
  snprintf(checkpoint, sizeof checkpoint, "%s/checkpoint", folder);
  snprintf(script, sizeof script, "%s/net.pt", folder);
  snprintf(missing, sizeof missing, "%s/net.pt/checkpoint", folder); /* net.pt is a file */
  lockstep_model *model = NULL, *resumed = NULL;
  CHECK_OK(make_net(1, &model));
  CHECK_OK(make_net(2, &resumed));
  lockstep_training_options options = LOCKSTEP_TRAINING_OPTIONS;
  options.loss = "mse";
  CHECK_OK(lockstep_model_start_training(model, comm, &options));
  CHECK_OK(lockstep_model_start_training(resumed, comm, &options));
  CHECK_ERROR(lockstep_model_restore(resumed, checkpoint), LOCKSTEP_CHECKPOINT_ERROR, checkpoint);
  batch part;
  for (int step = 0; step < 12; ++step) {
    fill_part(&part, step, rank, size);
    CHECK_OK(lockstep_model_train_step(model, &part.inputs, 1, &part.targets, 1, NULL));
    if (step == 5) {
      CHECK_OK(lockstep_model_save(model, checkpoint));
      CHECK_OK(lockstep_model_restore(resumed, checkpoint));
      int64_t steps = 0;
      CHECK_OK(lockstep_model_steps(resumed, &steps));
      CHECK_THAT(steps == 6);
    }
    if (step >= 5) CHECK_THAT(difference(model, resumed) == 0 || step > 5);
    if (step > 5)
      CHECK_OK(lockstep_model_train_step(resumed, &part.inputs, 1, &part.targets, 1, NULL));
  }
  CHECK_THAT(difference(model, resumed) == 0);

  /* As TorchScript, and back. */
  CHECK_OK(lockstep_model_save_script(model, script));
  lockstep_model* loaded = NULL;
  CHECK_OK(lockstep_model_load(script, NULL, &loaded));
  CHECK_THAT(difference(model, loaded) == 0);
  double given[kRows * kOutputs];
  fill(&part, 0, 0, kRows);
  lockstep_array result = part.targets, view = {.data = NULL};
  result.data = given;
  CHECK_OK(lockstep_model_forward(model, &part.inputs, 1, &result, 1));
  CHECK_OK(lockstep_model_forward(loaded, &part.inputs, 1, &view, 1));
  CHECK_THAT(view.ndim == 2 && view.shape[0] == kRows && view.shape[1] == kOutputs);
  CHECK_THAT(memcmp(view.data, given, sizeof given) == 0);
  /* A model that is not in training is written by the caller alone. */
  CHECK_OK(lockstep_barrier(comm));
  if (rank == 0) CHECK_OK(lockstep_model_save(loaded, checkpoint));
  CHECK_OK(lockstep_barrier(comm));
  CHECK_OK(lockstep_model_restore(loaded, checkpoint));
  CHECK_ERROR(lockstep_model_restore(resumed, checkpoint), LOCKSTEP_CHECKPOINT_ERROR, checkpoint);
  CHECK_THAT(difference(model, resumed) == 0);
  const lockstep_status refused = lockstep_model_save(model, missing);
  CHECK_THAT(refused == LOCKSTEP_SYSTEM_ERROR);
  CHECK_THAT(strstr(lockstep_last_error(), "net.pt") != NULL);

  /* What is no checkpoint is not replaced: a file, and a folder with foreign files in it. */
  const lockstep_status mine = rank == 0 ? LOCKSTEP_INVALID_ARGUMENT : LOCKSTEP_CHECKPOINT_ERROR;
  CHECK_ERROR(lockstep_model_save(model, script), mine, "is no checkpoint");
  CHECK_ERROR(lockstep_model_save(model, folder), mine, "is no checkpoint");
  CHECK_OK(lockstep_model_free(loaded));
  CHECK_OK(lockstep_model_load(script, NULL, &loaded));
  CHECK_THAT(difference(model, loaded) == 0);
  CHECK_OK(lockstep_model_free(model));
  CHECK_OK(lockstep_model_free(resumed));
  CHECK_OK(lockstep_model_free(loaded));
  CHECK_OK(lockstep_comm_free(alone));
  CHECK_OK(lockstep_comm_free(comm));
  return 0;
}

int check_model_mistakes(const char* folder) {
  lockstep_comm* comm = NULL;
  lockstep_model* model = NULL;
  char path[512];
  CHECK_OK(lockstep_init(NULL, &comm));
  snprintf(path, sizeof path, "%s/absent.pt", folder);
  CHECK_ERROR(lockstep_model_load(path, NULL, &model), LOCKSTEP_DATA_ERROR, "absent.pt");
  snprintf(path, sizeof path, "%s/text.pt", folder);
  FILE* file = fopen(path, "w");
  CHECK_THAT(file != NULL && fputs("no model\n", file) >= 0 && fclose(file) == 0);
  CHECK_ERROR(lockstep_model_load(path, NULL, &model), LOCKSTEP_DATA_ERROR, "not a TorchScript");
  CHECK_ERROR(lockstep_model_load(path, "toaster", &model), LOCKSTEP_INVALID_ARGUMENT, "toaster");
  CHECK_THAT(model == NULL);
  const int64_t sizes[2] = {2, 0};
  lockstep_mlp_options net = LOCKSTEP_MLP_OPTIONS;
  net.sizes = sizes;
  net.count = 2;
  CHECK_ERROR(lockstep_model_mlp(&net, &model), LOCKSTEP_INVALID_ARGUMENT, "a layer of 0");
  net.count = 1;
  CHECK_ERROR(lockstep_model_mlp(&net, &model), LOCKSTEP_INVALID_ARGUMENT, "2 sizes or more");
  net.activation = "square";
  CHECK_ERROR(lockstep_model_mlp(&net, &model), LOCKSTEP_INVALID_ARGUMENT, "square");

  CHECK_OK(make_net(1, &model));
  batch part;
  fill(&part, 0, 0, 4);
  double loss = 0;
  CHECK_ERROR(lockstep_model_train_step(model, &part.inputs, 1, &part.targets, 1, &loss),
              LOCKSTEP_INVALID_ARGUMENT, "not in training");
  lockstep_training_options options = LOCKSTEP_TRAINING_OPTIONS;
  options.loss = "hinge";
  CHECK_ERROR(lockstep_model_start_training(model, comm, &options), LOCKSTEP_INVALID_ARGUMENT,
              "no loss 'hinge'");
  options.loss = "mse";
  options.optimizer = "lion";
  CHECK_ERROR(lockstep_model_start_training(model, comm, &options), LOCKSTEP_INVALID_ARGUMENT,
              "no optimizer 'lion'");
  options.optimizer = "adam";
  options.beta1 = 1;
  CHECK_ERROR(lockstep_model_start_training(model, comm, &options), LOCKSTEP_INVALID_ARGUMENT,
              "beta1");
  options.beta1 = 0.9;
  CHECK_OK(lockstep_model_start_training(model, comm, &options));
  options.optimizer = "lion"; /* refused, and the training goes on */
  CHECK_ERROR(lockstep_model_start_training(model, comm, &options), LOCKSTEP_INVALID_ARGUMENT,
              "no optimizer 'lion'");
  CHECK_OK(lockstep_model_train_step(model, &part.inputs, 1, &part.targets, 1, &loss));
  part.target_shape[1] = 1; /* mse would stretch it */
  CHECK_ERROR(lockstep_model_train_step(model, &part.inputs, 1, &part.targets, 1, &loss),
              LOCKSTEP_INVALID_ARGUMENT, "the target has the shape [4, 1]");
  lockstep_array none[1] = {{.data = NULL}}, two[2] = {{.data = NULL}, {.data = NULL}};
  CHECK_ERROR(lockstep_model_forward(model, &part.inputs, 1, two, 2), LOCKSTEP_INVALID_ARGUMENT,
              "1 outputs");
  CHECK_ERROR(lockstep_model_forward(model, &part.inputs, 1, &part.targets, 1),
              LOCKSTEP_INVALID_ARGUMENT, "outputs[0] has the shape [4, 1]");
  CHECK_OK(lockstep_model_forward(model, &part.inputs, 1, none, 1));
  CHECK_ERROR(lockstep_model_parameter(model, 4, NULL, NULL), LOCKSTEP_INVALID_ARGUMENT,
              "index is 4 of 4");
  CHECK_OK(lockstep_model_free(model));
  CHECK_OK(lockstep_comm_free(comm));
  return 0;
}

int check_loss_script(const char* file) {
  lockstep_comm *comm = NULL, *alone = NULL;
  int32_t rank = 0, size = 0;
  if (join_job(&comm, &alone, &rank, &size) != 0) return 1;
  lockstep_training_options options = LOCKSTEP_TRAINING_OPTIONS;
  options.loss = file;
  if (train_both(comm, alone, rank, size, &options) != 0) return 1;
  CHECK_OK(lockstep_comm_free(alone));
  CHECK_OK(lockstep_comm_free(comm));
  return 0;
}
