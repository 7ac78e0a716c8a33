/* A CUDA driver for tests: what Steelyard calls of it, with launches handed to
 * a callback. */
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

typedef int (*LoadCallback)(const char *text, char *log, unsigned log_size);
typedef int (*LaunchCallback)(int module, const char *name, unsigned blocks,
                              unsigned threads, unsigned shared,
                              uint64_t stream, void **arguments);

typedef int (*CapturingCallback)(uint64_t stream);

static LoadCallback load_callback;
static LaunchCallback launch_callback;
static CapturingCallback capturing_callback;
static int major = 9, minor = 0, context, current;
/* A context stack of one: what was current before is there again after. */
static int pushed;
static struct {
  int module;
  char name[256];
  unsigned shared_limit;
} functions[4096];
static int function_count;

void mock_set(LoadCallback load, LaunchCallback launch,
              CapturingCallback capturing, int new_major, int new_minor) {
  load_callback = load, launch_callback = launch,
  capturing_callback = capturing, major = new_major, minor = new_minor;
}

enum {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  INVALID_CONTEXT = 201,
  INVALID_PTX = 218,
  NOT_FOUND = 500,
  LAUNCH_FAILED = 719,
  CAPTURE_UNSUPPORTED = 900
};

int cuGetProcAddress_v2(const char *symbol, void **function, int version,
                        uint64_t flags, int *status) {
  char name[300];
  strncpy(name, symbol, 290), name[290] = 0;
  *function = dlsym(RTLD_DEFAULT, name);
  if (status)
    *status = *function ? 0 : 1;
  return *function ? SUCCESS : NOT_FOUND;
}
int cuGetProcAddress(const char *symbol, void **function, int version,
                     uint64_t flags) {
  return cuGetProcAddress_v2(symbol, function, version, flags, 0);
}
int cuInit(unsigned flags) { return SUCCESS; }
int cuDriverGetVersion(int *version) {
  *version = 13000;
  return SUCCESS;
}
int cuDeviceGet(int *device, int index) {
  *device = index;
  return index == 0 ? SUCCESS : 101;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  if (attribute != 75 && attribute != 76)
    return INVALID_VALUE;
  *value = attribute == 75 ? major : minor;
  return SUCCESS;
}
int cuDevicePrimaryCtxRetain(void **result, int device) {
  *result = &context;
  return SUCCESS;
}
int cuCtxPushCurrent_v2(void *given) {
  if (pushed)
    return INVALID_CONTEXT;
  pushed = 1, current = given == &context;
  return SUCCESS;
}
int cuCtxPopCurrent_v2(void **given) {
  if (!pushed)
    return INVALID_CONTEXT;
  if (given)
    *given = &context;
  pushed = current = 0;
  return SUCCESS;
}
int cuCtxPushCurrent(void *given) { return cuCtxPushCurrent_v2(given); }
int cuCtxPopCurrent(void **given) { return cuCtxPopCurrent_v2(given); }
int mock_is_pushed(void) { return pushed; }
int cuStreamIsCapturing(void *stream, int *status) {
  *status = capturing_callback((uint64_t)stream);
  return SUCCESS;
}
int cuModuleLoadDataEx(void **module, const void *text, unsigned count,
                       const int *options, void **values) {
  enum { ERROR_LOG_BUFFER = 5, ERROR_LOG_BUFFER_SIZE_BYTES = 6 };
  char *log = 0;
  unsigned log_size = 0;
  for (unsigned i = 0; i < count; i++)
    if (options[i] == ERROR_LOG_BUFFER)
      log = values[i];
    else if (options[i] == ERROR_LOG_BUFFER_SIZE_BYTES)
      log_size = (unsigned)(uintptr_t)values[i];
    else
      return INVALID_VALUE;
  if (!current)
    return INVALID_CONTEXT;
  if (capturing_callback(0))
    return CAPTURE_UNSUPPORTED;
  int id = load_callback(text, log, log_size);
  *module = (void *)(intptr_t)id;
  return id > 0 ? SUCCESS : INVALID_PTX;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
  if (function_count == 4096)
    return INVALID_VALUE;
  functions[function_count].module = (int)(intptr_t)module;
  functions[function_count].shared_limit = 48 << 10;
  strncpy(functions[function_count].name, name, 255);
  *function = &functions[function_count++];
  return SUCCESS;
}
int cuFuncSetAttribute(void *function, int attribute, int value) {
  if (attribute != 8 || value > 99 << 10)
    return INVALID_VALUE; /* what the smallest target gives a block */
  ((__typeof__(functions[0]) *)function)->shared_limit = value;
  return SUCCESS;
}
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz,
                   unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void *stream, void **arguments, void **extra) {
  __typeof__(functions[0]) *known = function;
  if (!current)
    return INVALID_CONTEXT;
  if (gy != 1 || gz != 1 || by != 1 || bz != 1 || extra ||
      shared > known->shared_limit)
    return INVALID_VALUE;
  return launch_callback(known->module, known->name, gx, bx, shared,
                         (uint64_t)stream, arguments)
             ? LAUNCH_FAILED
             : SUCCESS;
}
