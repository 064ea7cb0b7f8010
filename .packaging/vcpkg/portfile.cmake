# The port of this checkout: vcpkg install mhla --overlay-ports=mhla/.packaging/vcpkg
# vcpkg does not detect changes of the checkout, so remove the package before you install it again.

set(VCPKG_BUILD_TYPE release)  # only headers
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)

vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS -DMHLA_BUILD_TESTS=OFF -DMHLA_BUILD_EXAMPLES=OFF -DMHLA_BUILD_BENCHMARKS=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH share/cmake/mhla)
vcpkg_fixup_pkgconfig()
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
