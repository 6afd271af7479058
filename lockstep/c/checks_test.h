/* What the tests of the C interface run, written in C. Each function returns 0, or 1 after a line
 * on stderr that says what was wrong. All join the job of the environment: every rank calls the
 * same. */
#ifndef LOCKSTEP_C_CHECKS_TEST_H
#define LOCKSTEP_C_CHECKS_TEST_H

#include <stdio.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

int check_mistakes(void);
int check_collectives(void);
int check_strides(void);
int check_messages(void);
int check_groups(void);
int check_store(void);
int check_arrays(void);
int check_mismatch(void);
int check_abort(void);
/* The last rank kills itself in the middle. */
int check_lost_peer(void);

int check_training(void);
int check_loss_function(void);
int check_failed_forward(void);
/* Two ranks or more: a rank's options, learning rate or loss are others than those of the rest. */
int check_unlike_options(void);
/* Two ranks or more: the last one has NULL for a handle. */
int check_null_handles(void);
/* Two ranks or more: each rank restores a checkpoint of its own. */
int check_unlike_checkpoints(const char* folder);
/* Two ranks or more: a rank has NULL in a call of a model. */
int check_null_in_models(const char* folder);
/* `folder` is the same for all ranks. */
int check_checkpoint(const char* folder);
int check_model_mistakes(const char* folder);
/* Trains with the TorchScript file as the loss, which is mse. */
int check_loss_script(const char* file);

#define CHECK_THAT(condition)                                                                \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      fprintf(stderr, "%s:%d: not so: %s; last error: %s\n", __FILE__, __LINE__, #condition, \
              lockstep_last_error());                                                        \
      return 1;                                                                              \
    }                                                                                        \
  } while (0)
#define CHECK_OK(call) CHECK_THAT((call) == LOCKSTEP_OK)
/* The call fails with that status, and its text has the words. */
#define CHECK_ERROR(call, status, words)                      \
  do {                                                        \
    CHECK_THAT((call) == (status));                           \
    CHECK_THAT(strstr(lockstep_last_error(), words) != NULL); \
    CHECK_THAT(strchr(lockstep_last_error(), '\n') == NULL || \
               (status) != LOCKSTEP_INVALID_ARGUMENT);        \
  } while (0)

#ifdef __cplusplus
}
#endif

#endif /* LOCKSTEP_C_CHECKS_TEST_H */
