// SPDX-License-Identifier: MIT
// libcuda.so.1, the driver: nothing is asked of it but whether it is there. torch's libcaffe2_nvrtc.so is linked with
// these functions.
#define NOT_SUPPORTED(name) \
  int name(void) { return 801; }

NOT_SUPPORTED(cuCtxSetCurrent)
NOT_SUPPORTED(cuDeviceGetAttribute)
NOT_SUPPORTED(cuDevicePrimaryCtxRetain)
NOT_SUPPORTED(cuFuncGetAttribute)
NOT_SUPPORTED(cuFuncSetAttribute)
NOT_SUPPORTED(cuFuncSetCacheConfig)
NOT_SUPPORTED(cuLaunchCooperativeKernel)
NOT_SUPPORTED(cuLaunchKernel)
NOT_SUPPORTED(cuLinkAddData_v2)
NOT_SUPPORTED(cuLinkComplete)
NOT_SUPPORTED(cuLinkCreate_v2)
NOT_SUPPORTED(cuModuleGetFunction)
NOT_SUPPORTED(cuModuleLoad)
NOT_SUPPORTED(cuModuleLoadData)
NOT_SUPPORTED(cuModuleLoadDataEx)
NOT_SUPPORTED(cuModuleUnload)
NOT_SUPPORTED(cuOccupancyMaxActiveBlocksPerMultiprocessor)
NOT_SUPPORTED(cuPointerGetAttribute)
NOT_SUPPORTED(cuTensorMapEncodeTiled)

int cuInit(unsigned flags) {
  (void)flags;
  return 0;
}

int cuCtxGetCurrent(void** context) {
  *context = (void*)0x10;  // any address but null: "there is a context"
  return 0;
}

int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}

int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  (void)device;
  *flags = 0;
  *active = 1;
  return 0;
}

int cuGetErrorString(int error, const char** text) {
  *text = error ? "emulated driver: not supported" : "no error";
  return 0;
}
